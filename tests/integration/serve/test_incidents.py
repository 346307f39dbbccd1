"""Incidents, each found with the command line alone, as docs/how-to/debug.md leads to it."""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import ZipFile

import pytest

from integration.serve.cluster import Cluster, cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(120), pytest.mark.asyncio]

RECORDED = "--decision-sampling=1"


async def bundle(run: Cluster, folder: Path) -> dict[str, object]:
    """The JSON files of `endpick bundle`."""
    await run.cli("bundle", "-o", str(folder / "bundle.zip"))
    with ZipFile(folder / "bundle.zip") as archive:
        return {name: json.loads(archive.read(name)) for name in archive.namelist() if name.endswith(".json")}


async def test_fast_errors(tmp_path):
    async with cluster(tmp_path, RECORDED, ejection="60s") as run:
        run.servers["a"].status = 500
        await run.send_until("endpoint default/a: healthy -> ejected")
        await run.send(40)
        assert "endpoint default/a is ejected for" in await run.cli("doctor")
        assert "times endpoint-health left it out before scheduling" in await run.cli("why", "--endpoint", "a")


async def test_slow_server(tmp_path):
    async with cluster(tmp_path) as run:
        run.servers["a"].seconds = 1.1
        await run.send_until("endpoint default/a: healthy -> degraded")
        await run.cli_until(r"endpoint default/a is degraded for \d+ s: slow: its median first token takes 1\.", "doctor")


async def test_dead_servers_and_one_that_comes_back(tmp_path):
    async with cluster(tmp_path, ejection="2s") as run:
        for server in run.servers.values():
            await server.stop()
        for name in "abc":
            await run.cli_until(rf"endpoint default/{name} is degraded for \d+ s: it reports no metrics any more", "doctor")
        await run.send(40)
        await run.cli_until("is ejected for", "doctor")
        await run.servers["a"].start()
        await run.send_until("endpoint default/a: probing -> healthy")
        assert "default/a" not in await run.cli("doctor")


async def test_sleeping_engine(tmp_path):
    async with cluster(tmp_path) as run:
        run.servers["b"].awake = 0
        await run.cli_until(r"endpoint default/b is ejected for \d+ s: asleep", "doctor")


async def test_restarted_server(tmp_path):
    async with cluster(tmp_path) as run:
        await run.servers["c"].stop()
        await run.servers["c"].start()
        await run.picker.logged("endpoint default/c: its model server restarted")
        log = (await bundle(run, tmp_path))["log.json"]
        assert any("default/c: its model server restarted" in line["event"] for line in log["lines"])


async def test_garbage_page(tmp_path):
    async with cluster(tmp_path) as run:
        run.servers["a"].page = "<html>It works!</html>"
        await run.cli_until(r"endpoint default/a is degraded for \d+ s: it reports no metrics any more", "doctor")


async def test_bad_weight(tmp_path):
    async with cluster(tmp_path) as run:
        config = tmp_path / "config.yaml"
        profile = "schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer, weight: %s}]}]\n"
        config.write_text(config.read_text() + profile % "2")
        run.picker.reload()
        await run.picker.logged("configuration replaced")
        config.write_text(config.read_text().replace("weight: 2", "weight: 200"))
        run.picker.reload()
        await run.picker.logged("configuration replaced", times=2)
        latest = (await bundle(run, tmp_path))["reloads.json"]["reloads"][0]
        assert latest["changes"] == [{"text": "queue-scorer: weight 2 → 200 in profile default", "routes": True}]


async def test_faulty_plugin(tmp_path, fixture_project):
    async with cluster(tmp_path, RECORDED, path=[fixture_project("faulty-scorers")], more="- {type: faulty.raises}\n") as run:
        await run.send(40)
        assert "faulty.raises" in await run.cli_until("is left out for", "doctor")
        request_id = (await bundle(run, tmp_path))["decisions.json"]["decisions"][0]["id"]
        assert "faulty.raises failed" in await run.cli("why", request_id)
