"""What is on disk or installed, compared with what serves."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from endpick.config import load_config
from endpick.engine.reload_log import REMEMBERED, ReloadLog, ReloadResult, Trigger
from endpick.host.planning.plan import PlanOutcome
from endpick.serve import drift as drift_module
from endpick.serve.drift import Drift, DriftWatch, installed_version
from endpick.serve.metrics import EndpickMetrics
from unit.engine.recorded_process import Process, planned


def test_installed_version_is_empty_for_what_is_not_installed():
    assert installed_version("endpick")
    assert installed_version("no-such-distribution") == ""


def test_each_difference_is_a_sentence():
    drift = Drift(None, {"acme": "1.0", "gone": "2.0", "same": "3.0"}, {"acme": "1.1", "gone": "", "same": "3.0"})

    assert drift.remarks() == (
        "acme 1.1 is installed, but 1.0 serves; restart to run it",
        "gone 2.0 serves and is not installed any more; a restart would fail",
    )


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.mark.asyncio
async def test_file_that_does_not_serve_is_remarked_and_logged_once(tmp_path, monkeypatch, registry, caplog):
    monkeypatch.setattr(drift_module, "installed_version", {"endpick": installed_version("endpick"), "tests": "1.0"}.__getitem__)
    process = await Process.begun(planned())
    file = tmp_path / "config.yaml"
    text = process.plan.config.source.text
    watch = DriftWatch(process.picker, file, EndpickMetrics(registry))

    for content, differs in [(text, 0), (f"# a comment\n{text}", 0), (f"{text}objectives: []\n", 1), ("{", 1), (None, 1), (text, 0)]:
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_text(content)
        await watch.check()
        assert (registry.get_sample_value("endpick_config_drift"), len(watch.drift.remarks())) == (differs, differs), content

    assert caplog.text.count("is not the configuration that serves") == 1
    await process.picker.stop()


@pytest.mark.asyncio
async def test_drift_is_found_without_a_reload(tmp_path, monkeypatch, registry):
    monkeypatch.setattr(drift_module, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(drift_module, "SETTLE_SECONDS", 0.0)
    process = await Process.begun(planned())
    (tmp_path / "missing.yaml").write_text(process.plan.config.source.text)
    watch = DriftWatch(process.picker, tmp_path / "missing.yaml", EndpickMetrics(registry))

    await watch.endpick_started()
    (tmp_path / "missing.yaml").unlink()
    async with asyncio.timeout(20):
        while not registry.get_sample_value("endpick_config_drift"):  # noqa: ASYNC110 - compared in a thread
            await asyncio.sleep(0.01)
    await watch.endpick_stopping()
    await process.picker.stop()


@pytest.mark.asyncio
async def test_each_reload_is_remembered_with_its_changes():
    process = await Process.begun(planned())
    outcomes = [PlanOutcome(None, load_config(text="{").diagnostics), PlanOutcome(planned("second")), PlanOutcome(planned())]
    reloader = process.reloader(outcomes.pop)

    entries = [await reloader.reload(trigger) for trigger in (Trigger.FILE, Trigger.SIGNAL, Trigger.FILE, Trigger.SIGNAL)]

    assert tuple(reloader.log) == tuple(entries)
    assert [entry.result for entry in entries] == [
        *(ReloadResult.UNCHANGED, ReloadResult.APPLIED),
        *(ReloadResult.REFUSED, ReloadResult.REFUSED),
    ]
    unchanged, applied, refused, failed = entries
    assert (unchanged.changes, unchanged.old_hash) == ((), unchanged.new_hash)
    assert [str(change) for change in applied.changes] == ["first removed from profile default", "second added to profile default"]
    assert (refused.old_hash, refused.new_hash, bool(refused.diagnostics)) == (applied.new_hash, "", True)
    assert failed.problem == "IndexError: pop from empty list"
    await process.picker.stop()


def test_the_oldest_reloads_are_forgotten():
    log = ReloadLog()
    for number in range(REMEMBERED + 1):
        log.append(number)

    assert (len(log), log[0]) == (REMEMBERED, 1)
