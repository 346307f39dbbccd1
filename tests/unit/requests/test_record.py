"""Decision records: what they hold of requests that are routed, refused or fail."""

from __future__ import annotations

from dataclasses import fields

import jsonschema
import pytest

from endpick.api import Rejection, Scorer
from endpick.api.keys import WAITING_QUEUE_SIZE
from endpick.cli.schema import output_schemas
from endpick.host.telemetry import FaultRecord
from endpick.requests.document import (
    DecisionOutput,
    FilterStep,
    OutcomeOutput,
    PluginFault,
    ProfileRun,
    RemovedEndpoints,
    ScorerStep,
    Waiting,
)
from endpick.requests.model import CloseCause
from endpick.requests.record import DecisionRecord, Outcome, Removal, Why, document_of
from endpick.scheduling.trace import FilterRecord, ProfileRecord, ScorerRecord, Waited
from endpick_builtin.scorers.load import QueueScorer
from unit.requests.stage import JSON_OK, Stage, candidate_filter_of, header_processor_of
from unit.scheduling.workbench import instance, plugin_of, pool


def recorded(stage: Stage) -> dict[str, object]:
    """The only record, valid by the published schema."""
    (record,) = stage.records
    document = document_of(record)
    jsonschema.Draft202012Validator(output_schemas()["decision"]).validate(document)
    DecisionOutput.model_validate(document)
    return document


@pytest.mark.parametrize(
    ("model", "recorded"),
    [
        (FilterStep, FilterRecord),
        (OutcomeOutput, Outcome),
        (PluginFault, FaultRecord),
        (ProfileRun, ProfileRecord),
        (RemovedEndpoints, Removal),
        (ScorerStep, ScorerRecord),
        (Waiting, Waited),
    ],
)
def test_the_document_has_the_fields_of_the_record(model, recorded):
    assert list(model.model_fields) == [field.name for field in fields(recorded)]


def test_the_document_of_a_decision_has_the_fields_of_its_record():
    names = {"snapshot": "endpoints"}
    recorded = [names.get(field.name, field.name) for field in fields(DecisionRecord) if field.name != "span"]

    assert sorted(DecisionOutput.model_fields) == sorted(["version", *recorded])


def test_routed_request_is_recorded_to_its_end():
    table = pool(size=3)
    for endpoint, queue in zip(table.generation.endpoints, (4.0, 1.0, 2.0), strict=True):
        table.write(WAITING_QUEUE_SIZE, endpoint, queue)
    dropper = candidate_filter_of(lambda endpoints: endpoints.take([0, 1]), "dropper")
    stage = Stage(table=table, scorers=[(instance(QueueScorer, "queue"), 2.0)], candidate_filters=[dropper], records=True)
    exchange = stage.route(x_request_id="one").exchange
    assert stage.records == [], "it is recorded when it ends"
    exchange.response_headers(JSON_OK, "10.0.0.2:8000")
    exchange.response_chunk(b'{"usage": {"prompt_tokens": 7, "completion_tokens": 2}}', True)
    exchange.finish(CloseCause.END)

    document = recorded(stage)
    first, second, third = (endpoint.name for endpoint in table.generation.endpoints)
    assert (document["id"], document["candidates"], document["destinations"]) == ("one", [first, second], ["10.0.0.2:8000"])
    assert document["removed"] == [{"instance": "dropper", "type": "test.dropper", "endpoints": [third], "problem": ""}]
    assert [each["values"]["waiting-queue-size"] for each in document["endpoints"]] == [4.0, 1.0, 2.0]
    assert document["endpoints"][0]["ages"] == {"waiting-queue-size": 0.0}
    (run,) = document["runs"]
    assert (run["picked"], run["totals"], run["scorers"][0]["weighted"]) == ([second], [0.0, 2.0], [0.0, 2.0])
    ended = document["outcome"]
    assert (ended["cause"], ended["status"], ended["servedBy"]) == ("natural", 200, second)
    assert (ended["promptTokens"], ended["completionTokens"]) == (7, 2)


def test_values_stay_as_they_were_at_the_decision():
    table = pool(size=1)
    (endpoint,) = table.generation.endpoints
    table.write(WAITING_QUEUE_SIZE, endpoint, 3.0)
    stage = Stage(table=table, records=True)
    exchange = stage.route().exchange
    table.write(WAITING_QUEUE_SIZE, endpoint, 9.0)
    exchange.finish(CloseCause.END)
    assert recorded(stage)["endpoints"][0]["values"] == {"waiting-queue-size": 3.0}


def test_faults_of_a_decision_are_in_its_record():
    broken = plugin_of(Scorer, "broken", score=lambda request, endpoints, state: None)
    stage = Stage(scorers=[(broken, 1.0)], records=True)
    stage.route().exchange.finish(CloseCause.END)
    fault = {"instance": "broken", "extensionPoint": "Scorer", "problem": "answered NoneType, not an array of scores"}
    assert recorded(stage)["faults"] == [fault]


def test_refused_request_is_recorded():
    stage = Stage(candidate_filters=[candidate_filter_of(lambda endpoints: endpoints.take([]), "dropper")], records=True)
    stage.refuse()
    document = recorded(stage)
    assert (document["status"], document["runs"], document["outcome"]) == (503, [], None)
    assert document["removed"][0]["instance"] == "dropper"


def test_errors_are_recorded_without_sampling():
    stage = Stage(records=True)
    stage.begin = lambda request, plan: None
    for status in (200, 404, 500):
        exchange = stage.route().exchange
        exchange.response_headers({":status": str(status)}, None)
        exchange.finish(CloseCause.END)
    document = recorded(stage)
    assert (document["why"], document["outcome"]["status"], document["endpoints"]) == ("error", 500, [])
    assert len(document["destinations"]) == 1


def test_a_refusal_before_the_decision_is_an_error():
    stage = Stage(header_processors=[header_processor_of(lambda request, state: Rejection("no", 403))], records=True)
    stage.refuse()
    assert (recorded(stage)["why"], stage.records[0].status) == (Why.ERROR, 403)


def test_an_unread_body_is_no_decision():
    stage = Stage(records=True)
    stage.refuse(b"{")
    assert stage.records == []
