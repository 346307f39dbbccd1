"""Conversations recorded with a real Envoy, replayed without one."""

from __future__ import annotations

import pytest

from endpick._proto.ext_proc_pb2 import ProcessingRequest, ProcessingResponse
from endpick.extproc.session import Session
from endpick.requests.model import BodyMode, CloseCause
from integration.envoy.picker import Director
from integration.envoy.recordings import SCENARIOS, load


def replayed(name: str) -> tuple[Session, Director, list[ProcessingResponse]]:
    """Feed what Envoy said; the answers of the recording say where the director of that day sent the request."""
    conversation = load(name)
    director = Director()
    director.destination = destination(conversation)
    session = Session(director)
    replies = [reply for direction, message in conversation if direction == "in" for reply in session.receive(message)]
    return session, director, [ProcessingResponse.FromString(reply) for reply in replies]


def destination(conversation: list[tuple[str, bytes]]) -> str:
    for direction, message in conversation:
        metadata = ProcessingResponse.FromString(message).dynamic_metadata if direction == "out" else None
        if metadata is not None and "envoy.lb" in metadata:
            return str(metadata["envoy.lb"]["x-gateway-destination-endpoint"])
    return ""


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_session_answers_a_recorded_envoy_as_it_did(name):
    expected = [ProcessingResponse.FromString(message) for direction, message in load(name) if direction == "out"]
    assert replayed(name)[2] == expected


@pytest.mark.parametrize("name", SCENARIOS)
def test_recorded_conversation_finishes_its_exchange_once(name):
    session, director, _ = replayed(name)
    session.close(CloseCause.RESET)
    refused = "refused" in name or name == "buffered-trailers-only"
    finishes = [seen.finishes for seen in director.requests()]
    assert finishes == ([] if refused else [[CloseCause.END]])


CONNECT = "remote_connection_failure|delayed_connect_error:_Connection_refused"


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("full_duplex-via-upstream", ""),
        ("full_duplex-unreachable", f"upstream_reset_before_response_started{{{CONNECT}}}"),
        ("full_duplex-reset", "upstream_reset_before_response_started{connection_termination}"),
        ("full_duplex-plain", None),
    ],
)
def test_attributes_name_the_cause_and_the_last_server(name, cause):
    [seen] = replayed(name)[1].requests()
    assert seen.gateway_error == cause
    assert seen.served == (None if cause is None else destination(load(name)))
    assert (seen.response_headers[":status"] == "503") == bool(cause)
    assert ("x-envoy-upstream-service-time" in seen.response_headers) == (not cause)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_recorded_envoy_names_its_dialect_in_the_first_message(name):
    first = ProcessingRequest.FromString(load(name)[0][1])
    assert first.HasField("protocol_config")
    mode = BodyMode(first.protocol_config.request_body_mode)
    dialect = SCENARIOS[name].dialect
    expected = {"no_response_body": "full_duplex_streamed", "no_bodies": "none", "full_duplex": "full_duplex_streamed"}
    assert mode.name.lower() == expected.get(dialect, dialect.removesuffix("_early"))


@pytest.mark.parametrize("cut", range(8))
def test_truncated_recorded_stream_finishes_its_exchange(cut):
    director = Director()
    director.destination = "127.0.0.1:1"
    session = Session(director)
    incoming = [message for direction, message in load("full_duplex-plain") if direction == "in"]
    for message in incoming[:cut]:
        session.receive(message)
    session.close(CloseCause.DISCONNECT)
    begun = [seen.finishes for seen in director.requests()]
    complete = cut >= len(incoming)
    assert begun == [[CloseCause.END if complete else CloseCause.DISCONNECT]] * (cut >= 3)
