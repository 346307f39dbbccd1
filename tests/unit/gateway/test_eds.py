"""The file of endpoints for Envoy."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from endpick.api import Endpoint
from endpick.data.table import EndpointTable
from endpick.serve.eds import EdsFile

POOL = [
    Endpoint("default/a", "10.0.0.1", 8000),
    Endpoint("default/b", "fd00::1", 8001),
    Endpoint("default/same", "10.0.0.1", 8000),
    Endpoint("default/named", "gpu-1", 8000),
]


def hosts(path: Path) -> list[tuple[str, int]]:
    (assignment,) = orjson.loads(path.read_bytes())["resources"]
    addresses = [each["endpoint"]["address"]["socket_address"] for each in assignment["endpoints"][0]["lb_endpoints"]]
    return [(each["address"], each["port_value"]) for each in addresses]


def test_file_follows_the_pool_with_ip_addresses_only(tmp_path: Path):
    path = tmp_path / "endpoints.json"
    table = EndpointTable(lambda: 0.0)
    table.on_changed.append(EdsFile(path))
    seen = [hosts(path)]
    for change in (lambda: table.replace_all(POOL), lambda: table.remove("default/b")):
        change()
        seen.append(hosts(path))
    assert seen == [[], [("10.0.0.1", 8000), ("fd00::1", 8001)], [("10.0.0.1", 8000)]]
    assert [each.name for each in tmp_path.iterdir()] == ["endpoints.json"]


def test_unwritable_file_is_logged_and_the_pool_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    folder = tmp_path / "run"
    folder.mkdir()
    table = EndpointTable(lambda: 0.0)
    table.on_changed.append(EdsFile(folder / "endpoints.json"))
    (folder / "endpoints.json").unlink()
    folder.rmdir()
    table.replace_all(POOL)
    assert len(table.generation.endpoints) == len(POOL)
    assert "the gateway keeps the old endpoints: No such file or directory" in caplog.text
