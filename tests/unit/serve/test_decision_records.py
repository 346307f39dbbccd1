"""Where decision records are kept, and when they are made."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from endpick.api import InferenceRequest, ResponseEnd, TerminationCause
from endpick.host.hooks import HookRegistry
from endpick.host.telemetry import Throttle
from endpick.requests.model import Refused
from endpick.requests.record import DecisionRecord, Snapshot, Why, document_of
from endpick.serve.decisions import DecisionFile, DecisionRecords, RecordSettings, Ring
from endpick.serve.metrics import EndpickMetrics
from unit.scheduling.workbench import REQUEST, pool

ASKING = InferenceRequest(id="a", model="m", incoming_model="m", headers={"x-endpick-explain": "1"})


ALL = RecordSettings(1.0)


def records(settings: RecordSettings = ALL) -> DecisionRecords:
    return DecisionRecords(HookRegistry(), settings, EndpickMetrics(CollectorRegistry()), lambda: 0.0)


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
    kept = records(RecordSettings(1.0, file=tmp_path / "decisions.jsonl"))
    kept.start()
    for number in range(3):
        kept.finish(a_record(number))
    kept.stop()
    lines = (tmp_path / "decisions.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["0", "1", "2"]
    assert kept.counts() == {"recorded": 3, "shown": 3, "dropped": 0}


def test_file_is_rotated(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("endpick.serve.decisions.FILE_BYTES", 1000)
    file = DecisionFile(tmp_path / "decisions.jsonl", Throttle(lambda: 0.0, 60.0))
    for number in range(40):
        file.write(document_of(a_record(number)))
    file.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decisions.jsonl", *(f"decisions.jsonl.{n}" for n in range(1, 5))]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())


def test_a_full_disk_is_a_remark_until_it_has_room(tmp_path: Path):
    file = DecisionFile(tmp_path / "decisions.jsonl", Throttle(lambda: 0.0, 60.0))
    stream, file.stream = file.stream, Path("/dev/full").open("w")  # noqa: SIM115 - closed below
    file.write(document_of(a_record()))
    assert "No space left on device" in file.problem
    with suppress(OSError):
        file.stream.close()
    file.stream = stream
    file.write(document_of(a_record()))
    file.close()
    assert file.problem == ""


def test_log_lines_name_request_and_outcome(caplog):
    caplog.set_level(logging.INFO, "endpick.decisions")
    kept = records(RecordSettings(1.0, logs=True))
    record = a_record(7)
    record.destinations = ("10.0.0.1:8000",)
    kept.finish(record)
    (line,) = caplog.records
    assert (line.message, line.request_id, line.destinations, line.plan) == ("request routed", "7", "10.0.0.1:8000", "hash")
