"""Where decision records are kept, and when they are made."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from endpick.api import InferenceRequest, ResponseEnd, TerminationCause, hookimpl
from endpick.engine.instances import StartRefused
from endpick.host.hooks import Hooks
from endpick.requests.model import Refused
from endpick.requests.record import DecisionRecord, Snapshot, Why, document_of
from endpick.serve.decision_log import DecisionFile, DecisionLines
from endpick.serve.decisions import MAX_WAITING_RECORDS, DecisionRecords, RecordSettings, Ring
from endpick.serve.hook_objects import HookFaults
from endpick.serve.metrics import EndpickMetrics
from unit.scheduling.workbench import REQUEST, pool

ASKING = InferenceRequest(id="a", model="m", incoming_model="m", headers={"x-endpick-explain": "1"})


ALL = RecordSettings(1.0)


def records(settings: RecordSettings = ALL, *hook_objects: object, registry: CollectorRegistry | None = None) -> DecisionRecords:
    hooks = Hooks()
    for number, hook_object in enumerate(hook_objects):
        hooks.register(hook_object, f"observer-{number}")
    faults = HookFaults(EndpickMetrics(registry or CollectorRegistry()), lambda: 0.0)
    return DecisionRecords(hooks, settings, faults.report, lambda: 0.0)


def a_record(number: int = 0, *, why: Why = Why.SAMPLED, cells: int = 0) -> DecisionRecord:
    record = DecisionRecord(why, "hash", str(number), "m", "/", 0, "", time=float(number))
    if cells:
        members = pool(size=cells).generation.endpoints
        record.snapshot = Snapshot(members, 0.0, {"queue": (np.zeros(cells), None)})
    return record


@pytest.mark.parametrize(
    ("cause", "status", "has_failed"),
    [("natural", 200, False), ("client-disconnect", 0, False), ("natural", 429, False), ("natural", 503, True), ("error", 200, True)],
)
def test_failed_responses_are_told_from_others(cause, status, has_failed):
    record = a_record()
    record.ended(ResponseEnd(TerminationCause(cause), status, None, 0, 0.1, None))
    assert record.has_failed is has_failed
    record.refused(Refused(503, "Unavailable", "no endpoint"))
    assert record.has_failed


def test_ring_keeps_the_latest():
    ring = Ring(max_records=3)
    for number in range(10):
        ring.append(a_record(number))
    assert [record.id for record in ring] == ["9", "8", "7"]


def test_ring_bounds_the_values_of_large_pools():
    ring = Ring(max_records=100, max_cells=50)
    for number in range(10):
        ring.append(a_record(number, cells=20))
    assert [record.id for record in ring] == ["9", "8"]


def test_a_flood_of_errors_leaves_the_sample():
    kept = records()
    kept.finish(a_record(0))
    for number in range(1, 2000):
        kept.finish(a_record(number, why=Why.ERROR))
    assert len(kept.latest()) == 501
    assert [record.id for record in kept.latest()][-1] == "0"
    assert kept.counts()["recorded"] == 2000


@pytest.mark.parametrize(
    ("settings", "request_", "why"),
    [
        (RecordSettings(1.0), REQUEST, Why.SAMPLED),
        (RecordSettings(0.0), REQUEST, None),
        (RecordSettings(0.0), ASKING, None),
        (RecordSettings(0.0, obeys_header=True), ASKING, Why.ASKED),
        (RecordSettings(0.0, obeys_header=True), REQUEST, None),
    ],
)
def test_decisions_are_recorded_by_chance_or_if_asked(settings, request_, why):
    record = records(settings).begin(request_, "hash")
    assert (record and record.why) == why


def test_file_gets_json_lines(tmp_path: Path):
    file = DecisionFile(tmp_path / "decisions.jsonl", lambda: 0.0)
    kept = records(ALL, file)
    kept.start()
    for number in range(3):
        kept.finish(a_record(number))
    kept.stop()
    file.endpick_stopping()
    lines = (tmp_path / "decisions.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["0", "1", "2"]
    assert kept.counts() == {"recorded": 3, "shown": 3, "dropped": 0}


def test_file_is_rotated(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("endpick.serve.decision_log.FILE_BYTES", 1000)
    file = DecisionFile(tmp_path / "decisions.jsonl", lambda: 0.0)
    for number in range(40):
        file.endpick_decided(document_of(a_record(number)))
    file.endpick_stopping()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decisions.jsonl", *(f"decisions.jsonl.{n}" for n in range(1, 5))]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())


def test_a_full_disk_is_a_remark_until_it_has_room(tmp_path: Path):
    file = DecisionFile(tmp_path / "decisions.jsonl", lambda: 0.0)
    stream, file.stream = file.stream, Path("/dev/full").open("w")  # noqa: SIM115 - closed below
    file.endpick_decided(document_of(a_record()))
    assert "No space left on device" in file.remarks()[0]
    with suppress(OSError):
        file.stream.close()
    file.stream = stream
    file.endpick_decided(document_of(a_record()))
    file.endpick_stopping()
    assert file.remarks() == ()


def test_log_lines_name_request_and_outcome(caplog):
    caplog.set_level(logging.INFO, "endpick.decisions")
    routed, refused, ended = a_record(7), a_record(8), a_record(9)
    routed.destinations = ("10.0.0.1:8000",)
    refused.refused(Refused(503, "Unavailable", "no endpoint"))
    ended.ended(ResponseEnd(TerminationCause.NATURAL, 200, None, 0, 0.1, None))
    for record in (routed, refused, ended):
        DecisionLines().endpick_decided(document_of(record))
    first, second, third = caplog.records
    assert (first.message, first.request_id, first.destinations, first.plan) == ("request routed", "7", "10.0.0.1:8000", "hash")
    assert (second.message, second.status, second.refusal) == ("request refused", 503, "no endpoint")
    assert (third.response, third.end, third.seconds) == (200, "natural", 0.1)


def test_a_file_that_cannot_be_opened_refuses_the_start(tmp_path: Path):
    with pytest.raises(StartRefused, match="cannot be opened: No such file or directory"):
        DecisionFile(tmp_path / "missing" / "decisions.jsonl", lambda: 0.0)


class Blocking:
    """Observes nothing until `may_go` is set."""

    def __init__(self) -> None:
        self.begun, self.may_go = Event(), Event()

    @hookimpl
    def endpick_decided(self, record):
        self.begun.set()
        assert self.may_go.wait(20)


def test_a_slow_observer_misses_records_and_is_named(monkeypatch):
    monkeypatch.setattr("endpick.serve.decisions.SLOW_SECONDS", 0.0)
    observer = Blocking()
    kept = records(ALL, observer)
    kept.start()
    kept.finish(a_record())
    assert observer.begun.wait(20)
    for number in range(MAX_WAITING_RECORDS + 3):
        kept.finish(a_record(number))
    (remark,) = kept.remarks()
    assert remark.startswith("the hook object 'observer-0' from endpick ")
    assert "has not returned from endpick_decided for 0 s" in remark
    observer.may_go.set()
    kept.stop()
    assert kept.counts() == {"recorded": MAX_WAITING_RECORDS + 4, "shown": MAX_WAITING_RECORDS, "dropped": 4}
    assert kept.remarks() == ()


class Failing:
    """Raises at each decision."""

    @hookimpl
    def endpick_decided(self):
        raise SystemExit(3)


def test_a_failing_observer_is_counted_and_logged_once(caplog):
    registry = CollectorRegistry()
    kept = records(ALL, Failing(), registry=registry)
    kept.start()
    for number in range(3):
        kept.finish(a_record(number))
    kept.stop()
    labels = {"hook_object": "observer-0", "hook": "endpick_decided", "reason": "SystemExit"}
    assert registry.get_sample_value("endpick_hook_faults_total", labels) == 3
    assert caplog.text.count("failed in endpick_decided: SystemExit: 3") == 1
    assert kept.counts()["shown"] == 3


def test_records_that_nobody_observes_do_not_wait():
    kept = records()
    kept.start()
    kept.finish(a_record())
    kept.stop()
    assert kept.counts() == {"recorded": 1, "shown": 0, "dropped": 0}
