"""Each of llm-d's sample configurations, and what the charts write, serves requests through Envoy, on servers in the roles it names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from ruamel.yaml import YAML

from endpick_lab.demo.processes import Children
from integration.serve.disaggregated import IMAGE, Member, gateway_to, served_by, start_member, with_discovery
from integration.serve.roles import STAGES, Demands, demands_of
from integration.serve.test_disaggregation import CONFIGS, INSTALLED, sample

EACH = 2
"""Servers in each role that a configuration names."""
ELSEWHERE = {"dp-epp-config"}
"""Served in `test_the_sidecar_of_a_host_gets_requests_for_all_its_ranks`, for which it has to name a real port."""
NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml") if path.stem not in ELSEWHERE)

OF_CHARTS_AND_AUGUST = Path(__file__).parents[2] / "fixtures/configs"
OF_GRPC = {"chart-vllm-grpc"}
"""Its only parser reads messages of vLLM's gRPC service, as in `test_apis_served.py`."""
NEWER = sorted(path.stem for path in OF_CHARTS_AND_AUGUST.glob("*.yaml") if path.stem not in OF_GRPC)

LONG = "A longer question. " * 60
REQUESTS = (
    ("Hi", {"decode"}),
    (LONG, {"prefill", "decode"}),
    ([{"type": "text", "text": "And what is this? " * 60}, IMAGE], {"encode", "prefill", "decode"}),
)
"""What is asked, and the stages that deciders want for it: long prompts are prefilled, images encoded."""

pytestmark = [pytest.mark.long, pytest.mark.asyncio(loop_scope="module")]


class Servers:
    """The model servers of all tests: two in each role, started when a configuration first names it."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._running: dict[str, tuple[Member, ...]] = {}

    async def of(self, role: str) -> tuple[Member, ...]:
        """The servers of a role; their names begin with it."""
        if role not in self._running:
            names = [f"{role or 'any'}-{number}" for number in range(EACH)]
            self._running[role] = tuple([await start_member(self._children, name, role) for name in names])
        return self._running[role]

    async def pool_for(self, demands: Demands) -> list[Member]:
        """Servers in the roles that are named, and one in a role that is not, where there is such a role."""
        members = [member for role in demands.roles for member in await self.of(role)]
        if demands.bystander is not None:
            members.append((await self.of(demands.bystander))[0])
        return members


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Servers]:
    async with Children(tmp_path_factory.mktemp("servers")) as children:
        yield Servers(children)


def newer(name: str) -> dict[str, object]:
    """One of the files in tests/fixtures/configs, with endpoints from a file."""
    document = YAML(typ="safe").load(OF_CHARTS_AND_AUGUST / f"{name}.yaml")
    missing = sorted({plugin["type"] for plugin in document["plugins"]} - INSTALLED)
    if missing:
        pytest.skip(f"{name} needs types that are not built in: {', '.join(missing)}")
    return with_discovery(document)


async def serves(folder: Path, document: dict[str, object], servers: Servers) -> None:
    demands = demands_of(document)
    members = await servers.pool_for(demands)
    role_of = {member.name: member.role for member in members}
    async with gateway_to(folder, document, members) as gateway:
        for content, wanted in REQUESTS:
            served = await served_by(gateway, content)
            stages = {stage for stage in STAGES if stage == "decode" or (stage in demands.optional and stage in wanted)}
            assert {stage: role_of[name] for stage, name in served.items()} == {stage: demands.role_of[stage] for stage in stages}


@pytest.mark.skipif(not NAMES, reason="needs llm-d's sample configurations; set ENDPICK_TEST_DATA")
@pytest.mark.parametrize("name", NAMES)
async def test_requests_are_served_by_configured_roles(tmp_path: Path, name: str, servers: Servers) -> None:
    await serves(tmp_path, sample(name), servers)


@pytest.mark.parametrize("name", NEWER)
async def test_newer_samples_are_served_by_configured_roles(tmp_path: Path, name: str, servers: Servers) -> None:
    await serves(tmp_path, newer(name), servers)
