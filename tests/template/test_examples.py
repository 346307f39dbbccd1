"""The example plugins: complete projects that work, and still look as the template makes them."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from endpick.cli.new import draft, write
from template.gateway import serving
from template.workshop import ROOT

pytestmark = pytest.mark.long

EXAMPLES = ROOT / "examples" / "plugins"
TYPES = {
    "acme-carbon": {"acme.carbon-scorer", "acme.carbon-source", "acme.carbon-collector"},
    "acme-cost": {"acme.cost-picker"},
    "acme-tenant": {"acme.tenant-filter"},
}
KINDS = {"acme-carbon": "scorer", "acme-cost": "picker", "acme-tenant": "filter"}
UNCHANGED = (
    ".github/dependabot.yml",
    ".github/workflows/publish.yml",
    ".github/workflows/test.yml",
    ".gitignore",
    ".pre-commit-config.yaml",
    "LICENSE",
)
FIRST, SECOND = "127.0.0.1:8001", "127.0.0.1:8002"
ENOUGH_TO_RULE_OUT_LUCK = 12


@pytest.fixture(params=sorted(TYPES))
def name(request):
    return request.param


@pytest.fixture
def project(name, example):
    return example(name)


def test_every_example_is_tested():
    assert {folder.name for folder in EXAMPLES.iterdir() if folder.is_dir()} == set(TYPES)


def test_own_tests_types_and_style_pass(project):
    assert re.search(r"\d+ passed", project.test())
    project.check_types_and_style()


def test_verbs_know_the_plugins_and_the_kit_passes_them(name, project):
    assert project.listed() == dict.fromkeys(TYPES[name], "ok")
    project.run("endpick", "validate", "--strict", "examples/config.yaml")
    project.run("endpick", "test", "--dist", name)


def test_unchanged_files_match_the_template(name, tmp_path):
    fresh = write(draft(name.replace("-", ".", 1), KINDS[name]), tmp_path)

    assert {file for file in UNCHANGED if (fresh / file).read_text() != (EXAMPLES / name / file).read_text()} == set()
    made = {str(file.relative_to(fresh)) for file in fresh.rglob("*") if file.is_file()}
    assert {file for file in made if not (EXAMPLES / name / file).is_file()} == set()


@pytest.mark.asyncio
async def test_tenants_reach_their_own_endpoints_only(example):
    project = example("acme-tenant")
    async with serving(project.python, project.folder) as picker:
        assert await picker.ask({"x-tenant": "red"}) == (FIRST,)
        assert await picker.ask({"x-tenant": "blue"}) == (SECOND,)
        assert await picker.ask({"x-tenant": "green"}) == ()
        assert await picker.ask() == ()


@pytest.mark.asyncio
async def test_cheaper_of_two_equally_good_endpoints_is_picked(example):
    project = example("acme-cost")
    async with serving(project.python, project.folder) as picker:
        assert await picker.ask() == (SECOND, FIRST)


def test_the_verb_of_an_installed_distribution_runs(example):
    project = example("acme-cost")
    file = project.folder / "endpoints.json"
    file.write_text('{"endpoints": [{"name": "a", "labels": {"cost": "3"}}, {"name": "b", "labels": {"cost": "0.5"}}]}')

    assert project.run("endpick", "costs", str(file)) == "0.5  b\n3  a\n"
    assert "\nacme-cost:\n  costs  List the endpoints of a file, the cheapest first.\n" in project.run("endpick", "--help")


def test_the_hook_object_of_an_installed_distribution_is_loaded(example):
    project = example("acme-carbon")

    examined = project.run("endpick", "doctor")

    assert "acme.carbon  acme-carbon 0.1.0  acme_carbon.hooks:CarbonHooks" in re.sub(r" {3,}", "  ", examined)
    assert "no problems found" in examined
    assert '"acme.carbon (acme-carbon 0.1.0)"' in project.run("endpick", "plan", "examples/config.yaml", "--format", "json")


@pytest.mark.asyncio
async def test_requests_prefer_clean_electricity(example, tmp_path):
    project = example("acme-carbon")
    async with carbon_service({"a": 420, "b": 35}) as port:
        folder = tmp_path / "project"
        shutil.copytree(project.folder / "examples", folder / "examples")
        config = folder / "examples" / "config.yaml"
        config.write_text(config.read_text().replace("127.0.0.1:8090", f"127.0.0.1:{port}"))
        async with serving(project.python, folder) as picker, asyncio.timeout(30):
            in_a_row = 0
            while in_a_row < ENOUGH_TO_RULE_OUT_LUCK:
                in_a_row = in_a_row + 1 if await picker.ask() == (SECOND,) else 0


@asynccontextmanager
async def carbon_service(zones: dict[str, float]) -> AsyncIterator[int]:
    """A service that knows how clean electricity is; gives its port."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"zones": zones})

    application = web.Application()
    application.router.add_get("/carbon", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
