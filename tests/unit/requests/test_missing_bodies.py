"""A gateway that does not send all bodies is reported once, with the consequences for each plugin."""

from __future__ import annotations

from endpick.requests.model import BodyMode, BodyModes
from endpick_builtin.producers.inflight_load import InflightLoadProducer
from unit.requests.stage import Stage, observer_of, producer_of
from unit.scheduling.workbench import instance

NO_RESPONSE_BODY = BodyModes(response_body=BodyMode.NONE)
NO_BODIES = BodyModes(BodyMode.NONE, BodyMode.NONE)


def test_losses_without_response_bodies():
    watching = observer_of("watching", first_chunk=lambda request, state: None)
    at_the_end = observer_of("at-the-end", response_ended=lambda request, end, state: None)
    stage = Stage(observers=[watching, at_the_end])
    stage.route(body_modes=NO_RESPONSE_BODY)

    ((request_bodies, response_bodies, losses),) = stage.telemetry.delivered
    assert (request_bodies, response_bodies) == (True, False)
    assert losses == (
        "openai-parser reads no usage",
        "passthrough-parser reads no usage",
        "watching does not learn when a response begins",
        "at-the-end takes responses for over at their headers unless the gateway has response_trailer_mode: SEND",
    )


def test_losses_without_request_bodies():
    stage = Stage(producers=[producer_of(lambda request, endpoints, state: None, "prefixes")])
    stage.decide(None, body_modes=NO_BODIES)

    ((_, _, losses),) = stage.telemetry.delivered
    assert losses[:2] == (
        "openai-parser reads no model, prompt or limits",
        "prefixes sees an empty prompt",
    )


def test_each_change_is_reported_and_losses_once():
    stage = Stage()
    for _ in range(2):
        stage.route(body_modes=NO_RESPONSE_BODY)
        stage.route(body_modes=NO_RESPONSE_BODY)
        stage.route()
        stage.route()

    sent, losses = zip(*[(told[:2], told[2]) for told in stage.telemetry.delivered], strict=True)
    assert sent == ((True, False), (True, True)) * 2
    assert losses == (("openai-parser reads no usage", "passthrough-parser reads no usage"), (), (), ())


def test_losses_name_the_inflight_producer():
    producer = instance(InflightLoadProducer, "inflight-load-producer")
    stage = Stage(observers=[producer], producers=[producer], pre_request=[producer])

    stage.route(body_modes=NO_RESPONSE_BODY)

    assert stage.telemetry.delivered[0][2][2:] == (
        "inflight-load-producer does not learn when a response begins",
        "inflight-load-producer takes responses for over at their headers unless the gateway has response_trailer_mode: SEND",
    )


def test_equal_modes_are_no_change():
    stage = Stage()
    for _ in range(3):
        stage.route(body_modes=BodyModes())

    assert len(stage.telemetry.delivered) == 1
