"""The verb `endpick costs`."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from acme_cost.command import costs


def test_the_cheapest_endpoint_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.json"
    endpoints = [{"name": "a", "labels": {"cost": "3"}}, {"name": "b", "labels": {"cost": "0.5"}}]
    file.write_text(json.dumps({"endpoints": endpoints}))

    assert CliRunner().invoke(costs, [str(file)]).output == "0.5  b\n3  a\n"
