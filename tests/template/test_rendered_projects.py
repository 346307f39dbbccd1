"""What `endpick new` makes works as it is: its tests, types, style, verbs, and a request through it."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from endpick.cli.new import KINDS
from template.gateway import serving

pytestmark = pytest.mark.long

COLLECTING = ("data-source", "pool-source")
TYPES = {kind: {f"acme.sample-{kind}", *(["acme.sample-collector"] if kind in COLLECTING else [])} for kind in KINDS}
ENDPOINTS = {"127.0.0.1:8001", "127.0.0.1:8002"}

POLICIES = {"fairness-policy", "ordering-policy", "usage-limit-policy", "eviction-filter", "eviction-ordering-policy"}
"""What is called while requests wait."""


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def project(kind, rendered):
    return rendered(kind)


def test_behaviour_46_own_tests_types_and_style_pass(project):
    assert re.search(r"\d+ passed", project.test())
    project.check_types_and_style()


def test_behaviour_46_verbs_know_the_plugin(kind, project):
    types = TYPES[kind]

    assert project.listed() == dict.fromkeys(types, "ok")
    for plugin_type in types:
        facts = json.loads(project.run("endpick", "describe", plugin_type, "--format", "json"))
        assert facts["distribution"] == project.name
        assert all(parameter["description"] for parameter in facts["parameters"].get("properties", {}).values())
    # Data has no reader yet, and of the two kinds about eviction the other one's default is experimental: those are warnings.
    strictly = [] if kind in (*COLLECTING, "data-producer") or kind.startswith("eviction-") else ["--strict"]
    project.run("endpick", "validate", *strictly, "examples/config.yaml")


def test_behaviour_46_conformance_kit_runs_from_the_cli(project):
    project.run("endpick", "test", "--dist", project.name)


@pytest.mark.asyncio
async def test_request_is_routed_through_the_plugin(kind, project):
    async with serving(project.python, project.folder) as picker:
        destinations, runs = await picker.ask(), await picker.runs()

    assert destinations
    assert set(destinations) <= ENDPOINTS
    if kind not in COLLECTING and kind not in POLICIES:  # of a source that collects is the next test
        assert runs[f"acme.sample-{kind}"] >= 1


READER = """
import numpy as np

from acme_sample_data_source.keys import SAMPLE
from endpick.api import Scorer


class Near(Scorer):
    \"\"\"Prefers endpoints that were quick to connect to: score = 1 / (1 + seconds). One that was never measured scores 0.\"\"\"

    consumes = (SAMPLE,)

    def score(self, request, endpoints, state):
        return 1.0 / (1.0 + np.nan_to_num(endpoints[SAMPLE], nan=np.inf))
"""
SCORED_BY_READER = {
    "  - type: acme.sample-collector\n": "  - type: acme.sample-collector\n  - type: acme.near\n",
    "    plugins: []\n": "    plugins: [{pluginRef: acme.near}]\n",
}
ENOUGH_TO_RULE_OUT_LUCK = 12


@pytest.mark.asyncio
async def test_scorer_uses_the_column_of_the_source(rendered, make_distribution, tmp_path):
    project = rendered("data-source")
    reader = make_distribution("acme-near", {"acme.near": "acme_near:Near"}, modules={"acme_near": READER})
    config = (project.folder / "examples" / "config.yaml").read_text()
    for as_made, as_used in SCORED_BY_READER.items():
        assert config.count(as_made) == 1
        config = config.replace(as_made, as_used)
    folder = tmp_path / "project"
    (folder / "examples").mkdir(parents=True)
    (folder / "examples" / "config.yaml").write_text(config)

    async with model_server() as (open_port, visits), asyncio.timeout(60):
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))  # taken, and no server listens
            ports = {"closed": bound.getsockname()[1], "open": open_port}
            lines = [f'  - {{name: {name}, address: 127.0.0.1, port: "{port}"}}\n' for name, port in ports.items()]
            (folder / "examples" / "endpoints.yaml").write_text("endpoints:\n" + "".join(lines))
            async with serving(project.python, folder, [reader]) as picker:
                in_a_row = 0
                while in_a_row < ENOUGH_TO_RULE_OUT_LUCK:
                    in_a_row = in_a_row + 1 if await picker.ask() == (f"127.0.0.1:{open_port}",) else 0
                runs = await picker.runs()

    assert visits
    assert runs["acme.near"] >= ENOUGH_TO_RULE_OUT_LUCK


@asynccontextmanager
async def model_server() -> AsyncIterator[tuple[int, list[str]]]:
    """Something that accepts connections; gives its port, and notes who came."""
    visits: list[str] = []

    async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(writer.get_extra_info("peername")[0])
        writer.close()

    async with await asyncio.start_server(note, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], visits
