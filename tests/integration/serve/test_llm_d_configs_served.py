"""Each of llm-d's sample configurations serves requests through Envoy, with servers in the roles that it may ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.serve.disaggregated import disaggregated_gateway, served_by
from integration.serve.test_disaggregation import CONFIGS, sample

ROLES = ("encode", "prefill", "decode", "prefill-decode")
ELSEWHERE = {"dp-epp-config"}
"""Served in `test_the_sidecar_of_a_host_gets_requests_for_all_its_ranks`, for which it has to name a real port."""
NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml") if path.stem not in ELSEWHERE)

pytestmark = [
    pytest.mark.long,
    pytest.mark.asyncio,
    pytest.mark.skipif(not NAMES, reason="needs llm-d's sample configurations; set ENDPICK_TEST_DATA"),
]


@pytest.mark.parametrize("name", NAMES)
async def test_requests_are_served_as_the_configuration_is_written(tmp_path: Path, name: str) -> None:
    async with disaggregated_gateway(tmp_path, sample(name), list(ROLES)) as gateway:
        for text in ("Hi", "A longer question. " * 60, "Hi"):
            served = await served_by(gateway, text)
            assert served.keys() <= {"decode", "prefill"}
            assert served["decode"] in {f"sim-{number}" for number, _ in enumerate(ROLES)}
