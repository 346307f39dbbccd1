"""What `endpick new` makes works as it is: its tests, types, style, verbs, and a request through it."""

from __future__ import annotations

import json
import re

import pytest

from endpick.scaffold.project import KINDS
from template.gateway import serving

TYPES = {kind: {f"acme.sample-{kind}"} for kind in KINDS} | {"data-source": {"acme.sample-data-source", "acme.sample-collector"}}
ENDPOINTS = {"127.0.0.1:8001", "127.0.0.1:8002"}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def project(kind, rendered):
    return rendered(kind)


def test_own_tests_types_and_style_pass(project):
    assert re.search(r"\d+ passed", project.test())
    project.check_types_and_style()


def test_verbs_know_the_plugin(kind, project):
    types = TYPES[kind]

    assert project.listed() == dict.fromkeys(types, "ok")
    for plugin_type in types:
        facts = json.loads(project.run("endpick", "describe", plugin_type, "--format", "json"))
        assert facts["distribution"] == project.name
        assert all(parameter["description"] for parameter in facts["parameters"].get("properties", {}).values())
    strictly = [] if kind.startswith("data-") else ["--strict"]  # warns that the data has no reader yet
    project.run("endpick", "validate", *strictly, "examples/config.yaml")


def test_conformance_kit_passes_from_the_command_line(project):
    project.run("endpick", "test", "--dist", project.name)


@pytest.mark.asyncio
async def test_request_is_routed_through_the_plugin(kind, project):
    async with serving(project.python, project.folder) as picker:
        destinations, runs = await picker.ask(), await picker.runs()

    assert destinations
    assert set(destinations) <= ENDPOINTS
    if kind != "data-source":
        assert runs[f"acme.sample-{kind}"] >= 1
