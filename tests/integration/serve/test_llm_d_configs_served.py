"""Each of llm-d's sample configurations, and what the charts write, serves requests through Envoy, with servers in all roles."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from integration.serve.disaggregated import disaggregated_gateway, served_by, with_discovery
from integration.serve.test_disaggregation import CONFIGS, INSTALLED, sample

ROLES = ("encode", "prefill", "decode", "prefill-decode")
ELSEWHERE = {"dp-epp-config"}
"""Served in `test_the_sidecar_of_a_host_gets_requests_for_all_its_ranks`, for which it has to name a real port."""
NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml") if path.stem not in ELSEWHERE)

OF_CHARTS_AND_AUGUST = Path(__file__).parents[2] / "fixtures/configs"
OF_GRPC = {"chart-vllm-grpc"}
"""Its only parser reads messages of vLLM's gRPC service, as in `test_apis_served.py`."""
NEWER = sorted(path.stem for path in OF_CHARTS_AND_AUGUST.glob("*.yaml") if path.stem not in OF_GRPC)

pytestmark = [pytest.mark.long, pytest.mark.asyncio]


def newer(name: str) -> dict[str, object]:
    """One of the files in tests/fixtures/configs, with endpoints from a file."""
    document = YAML(typ="safe").load(OF_CHARTS_AND_AUGUST / f"{name}.yaml")
    missing = sorted({plugin["type"] for plugin in document["plugins"]} - INSTALLED)
    if missing:
        pytest.skip(f"{name} needs types that are not built in: {', '.join(missing)}")
    return with_discovery(document)


async def serves(folder: Path, document: dict[str, object]) -> None:
    async with disaggregated_gateway(folder, document, list(ROLES)) as gateway:
        for text in ("Hi", "A longer question. " * 60, "Hi"):
            served = await served_by(gateway, text)
            assert served.keys() <= {"decode", "prefill"}
            assert served["decode"] in {f"sim-{number}" for number, _ in enumerate(ROLES)}


@pytest.mark.skipif(not NAMES, reason="needs llm-d's sample configurations; set ENDPICK_TEST_DATA")
@pytest.mark.parametrize("name", NAMES)
async def test_requests_are_served_as_the_configuration_is_written(tmp_path: Path, name: str) -> None:
    await serves(tmp_path, sample(name))


@pytest.mark.parametrize("name", NEWER)
async def test_requests_are_served_as_newer_samples_and_charts_are_written(tmp_path: Path, name: str) -> None:
    await serves(tmp_path, newer(name))
