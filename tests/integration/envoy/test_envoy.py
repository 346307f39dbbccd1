"""Requests through a real Envoy, in every dialect, on every transport."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from endpick.extproc.stream import GrpcStatus
from endpick.requests.model import CloseCause
from integration.envoy.client import Answer, read, read_raw, send
from integration.envoy.conftest import Gateway
from integration.envoy.picker import Seen

ROUTES_BY_BODY = ("full_duplex", "streamed_early", "buffered", "buffered_partial", "no_response_body")
KEEPS_REQUEST = ("streamed", "no_bodies")
SHOWS_RESPONSE = ("full_duplex", "streamed", "streamed_early", "buffered", "buffered_partial")
EVERY_DIALECT = (*ROUTES_BY_BODY, *KEEPS_REQUEST)

MODEL = b'"model":"internal"'
RENAME = {"x-test-rewrite": '"model":"internal"|"model":"public"'}


@pytest.fixture
def ask(gateway: Gateway) -> Callable[..., tuple[Answer, Seen]]:
    """Send one request; the answer, and what the picker saw of it once it was over."""

    def ask(dialect: str, path: str, body: object = None, headers: Mapping[str, str] | None = None, **options: object):
        test_id = gateway.new_id()
        named = {"x-test-id": test_id, **(headers or {})}
        answer = read(send(gateway.envoy.ports[dialect], path, named, body, **options))  # type: ignore[arg-type]
        return answer, gateway.finished(test_id)

    return ask


def arrived(answer: Answer) -> dict:
    """How the model server describes the request that reached it."""
    assert answer.status == 200, answer
    return json.loads(answer.body)


def pattern(size: int) -> bytes:
    return (b"0123456789abcdef" * (size // 16 + 1))[:size]


@pytest.mark.parametrize("size", [1024, 16 * 1024, 200 * 1024, 3 * 1024 * 1024])
@pytest.mark.parametrize("dialect", ["full_duplex", "streamed", "no_response_body", "no_bodies"])
def test_a_body_of_any_size_reaches_the_model_server_untouched(ask, dialect, size):
    body = pattern(size)
    answer, seen = ask(dialect, "/what", body)
    assert arrived(answer)["sha256"] == hashlib.sha256(body).hexdigest()
    assert seen.finishes == [CloseCause.END]


@pytest.mark.parametrize("dialect", ["streamed_early", "buffered", "buffered_partial"])
def test_a_body_within_the_gateways_buffer_is_untouched(ask, dialect):
    body = pattern(200 * 1024)
    answer, seen = ask(dialect, "/what", body)
    assert arrived(answer)["sha256"] == hashlib.sha256(body).hexdigest()
    assert seen.incoming.body == body


def test_partially_buffered_body_arrives_whole(ask):
    body = pattern(3 * 1024 * 1024)
    answer, seen = ask("buffered_partial", "/what", body)
    assert arrived(answer)["sha256"] == hashlib.sha256(body).hexdigest()
    assert seen.incoming.body is None


@pytest.mark.parametrize("size", [16 * 1024, 3 * 1024 * 1024])
@pytest.mark.parametrize("dialect", ["full_duplex", "streamed", "no_response_body"])
def test_a_large_response_comes_back_untouched(ask, dialect, size):
    body = pattern(size)
    answer, _ = ask(dialect, "/echo", body)
    assert (answer.status, answer.body) == (200, body)


@pytest.mark.parametrize("dialect", ROUTES_BY_BODY)
def test_the_decision_sees_the_body(ask, dialect):
    assert ask(dialect, "/what", b'{"model":"m"}')[1].incoming.body == b'{"model":"m"}'


@pytest.mark.parametrize("dialect", KEEPS_REQUEST)
def test_the_decision_knows_that_the_gateway_kept_the_body(ask, dialect):
    _, seen = ask(dialect, "/what", b"{}")
    assert seen.incoming.body is None
    assert not seen.incoming.body_modes.sees_request_body


@pytest.mark.parametrize("dialect", EVERY_DIALECT)
def test_a_request_without_body_is_routed(ask, dialect):
    answer, seen = ask(dialect, "/v1/models")
    assert arrived(answer)["method"] == "GET"
    assert (seen.incoming.body, seen.incoming.headers[":path"]) == (None, "/v1/models")


@pytest.mark.parametrize("dialect", EVERY_DIALECT)
def test_headers_and_metadata_of_the_decision_arrive(ask, gateway, dialect):
    answer, _ = ask(dialect, "/what", b"{}", {"x-gateway-destination-endpoint": "6.6.6.6:666"})
    reached = arrived(answer)["headers"]
    assert reached["x-from-picker"] == "1"
    assert reached["x-gateway-destination-endpoint"] == gateway.picker.director.destination
    assert answer.headers["x-seen-metadata"] == gateway.picker.director.destination
    assert answer.headers["x-went-into-resp-headers"] == "true"


@pytest.mark.parametrize("dialect", ROUTES_BY_BODY)
@pytest.mark.parametrize("body", [b'{"model":"asked"}', [b'{"model":', b'"asked"}']], ids=["length", "chunked"])
def test_a_replaced_body_arrives_in_place_of_the_clients(ask, dialect, body):
    answer, _ = ask(dialect, "/what", body, {"x-test-body": '{"model":"rewritten-to-something-longer"}'})
    expected = b'{"model":"rewritten-to-something-longer"}'
    assert arrived(answer)["sha256"] == hashlib.sha256(expected).hexdigest()


@pytest.mark.parametrize("dialect", [dialect for dialect in EVERY_DIALECT if dialect != "streamed_early"])
def test_request_trailers_arrive_behind_the_body(ask, dialect):
    answer, _ = ask(dialect, "/what", [b"ab", b"cd"], trailers={"x-checksum": "42"})
    assert arrived(answer)["trailers"] == {"x-checksum": "42"}
    assert arrived(answer)["sha256"] == hashlib.sha256(b"abcd").hexdigest()


@pytest.mark.parametrize("dialect", ["full_duplex", "streamed", "no_response_body", "no_bodies"])
def test_request_trailers_without_body_do_not_hang(ask, dialect):
    answer, _ = ask(dialect, "/what", [], trailers={"x-checksum": "42"})
    assert arrived(answer)["trailers"] == {"x-checksum": "42"}


@pytest.mark.parametrize("dialect", ["buffered", "buffered_partial"])
def test_request_trailers_without_a_body_are_refused(gateway, dialect):
    answer = read(send(gateway.envoy.ports[dialect], "/what", {"x-test-id": "-"}, [], {"x-checksum": "42"}))
    assert (answer.status, answer.body) == (400, b"inference error: BadRequest - a request has trailers but no body")


@pytest.mark.parametrize("dialect", EVERY_DIALECT)
def test_response_trailers_pass(ask, gateway, dialect):
    test_id = gateway.new_id()
    headers = {"x-test-id": test_id, "connection": "close"}
    text = read_raw(send(gateway.envoy.ports[dialect], "/trailers", headers, b"x"))
    assert text.endswith(b"1\r\nx\r\n0\r\nx-checksum: 42\r\n\r\n")
    assert gateway.finished(test_id).finishes == [CloseCause.END]


@pytest.mark.parametrize("dialect", EVERY_DIALECT)
def test_model_server_error_keeps_repeated_headers(gateway, dialect):
    test_id = gateway.new_id()
    headers = {"x-test-id": test_id, "connection": "close"}
    text = read_raw(send(gateway.envoy.ports[dialect], "/cookies", headers, b"x"))
    assert text.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nset-cookie: a=1\r\n" in text
    assert b"\r\nset-cookie: b=2\r\n" in text
    assert gateway.finished(test_id).response_headers[":status"] == "503"


@pytest.mark.parametrize("dialect", EVERY_DIALECT)
def test_a_client_that_expects_100_continue_is_served(ask, dialect):
    answer, _ = ask(dialect, "/what", b"{}", {"expect": "100-continue"})
    assert arrived(answer)["size"] == 2


@pytest.mark.parametrize("dialect", EVERY_DIALECT)
def test_an_event_stream_passes_complete_and_in_order(ask, dialect):
    answer, seen = ask(dialect, "/sse?n=40", b"{}")
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.body == b"".join(b'data: {"model":"internal","n":%d}\n\n' % number for number in range(40))
    if dialect in SHOWS_RESPONSE:
        assert b"".join(seen.chunks) == answer.body
        assert seen.ends == 1
    else:
        assert seen.chunks == []


@pytest.mark.parametrize("dialect", SHOWS_RESPONSE)
@pytest.mark.parametrize("path", ["/split", "/sse?n=20", "/echo"])
def test_split_model_name_is_rewritten_back(ask, dialect, path):
    answer, _ = ask(dialect, path, b'{"model":"internal"}', RENAME)
    assert answer.status == 200
    assert MODEL not in answer.body
    assert b'"model":"public"' in answer.body


@pytest.mark.parametrize("dialect", EVERY_DIALECT)
def test_a_response_without_body_passes(ask, dialect):
    answer, seen = ask(dialect, "/empty", b"{}")
    assert (answer.status, answer.body, seen.finishes) == (204, b"", [CloseCause.END])


@pytest.mark.parametrize(
    "refusal",
    ["429,ResourceExhausted,rejected-saturated", "503,ServiceUnavailable,rejected-no-endpoints", "400,BadRequest,"],
)
@pytest.mark.parametrize("body", [None, b"{}", pattern(100_000)], ids=["bodyless", "small", "large"])
@pytest.mark.parametrize("dialect", EVERY_DIALECT)
def test_a_refusal_reaches_the_client(gateway, dialect, body, refusal):
    status, code, reason = refusal.split(",")
    answer = read(send(gateway.envoy.ports[dialect], "/what", {"x-test-refuse": refusal}, body))
    assert answer.status == int(status)
    assert answer.body == f"inference error: {code} - as the test asked".encode()
    assert answer.headers.get("x-llm-d-request-dropped-reason", "") == reason


@pytest.mark.parametrize("response", ["200,hello", "204,", "503,later"])
@pytest.mark.parametrize("body", [None, b"{}", pattern(100_000)], ids=["bodyless", "small", "large"])
@pytest.mark.parametrize("dialect", EVERY_DIALECT)
def test_response_of_a_plugin_reaches_the_client(gateway, dialect, body, response):
    status, _, text = response.partition(",")
    answer = read(send(gateway.envoy.ports[dialect], "/what", {"x-test-respond": response}, body))
    assert (answer.status, answer.body, answer.headers["x-by"]) == (int(status), text.encode() * 1000, "plugin")


def test_a_body_over_our_limit_is_refused(gateway):
    body = pattern(9 * 1024 * 1024)
    answer = read(send(gateway.envoy.ports["full_duplex"], "/what", {}, body))
    assert answer.status == 413
    assert answer.body.startswith(b"inference error: PayloadTooLarge")


@pytest.mark.parametrize("dialect", EVERY_DIALECT)
def test_a_director_that_raises_is_an_internal_error(gateway, dialect):
    answer = read(send(gateway.envoy.ports[dialect], "/what", {"x-test-raise": "secret"}, b"{}"))
    assert (answer.status, answer.body) == (500, b"inference error: Internal - the request could not be routed")


@pytest.mark.parametrize("dialect", EVERY_DIALECT)
def test_a_decision_that_has_to_wait_is_waited_for(ask, dialect):
    answer, _ = ask(dialect, "/what", b'{"model":"m"}', {"x-test-later": "0.05"})
    assert arrived(answer)["sha256"] == hashlib.sha256(b'{"model":"m"}').hexdigest()


@pytest.mark.parametrize(("subset", "expected"), [("10.0.0.1:8000,10.0.0.2", ("10.0.0.1:8000", "10.0.0.2"))])
def test_subset_hint_and_served_endpoint_arrive(ask, subset, expected):
    _, seen = ask("full_duplex", "/what", b"{}", {"x-test-subset": subset, "x-test-served": "10.0.0.2:8000"})
    assert seen.incoming.subset == expected
    assert seen.served == "10.0.0.2:8000"
    assert ask("full_duplex", "/what", b"{}")[1].incoming.subset is None


@pytest.mark.parametrize("dialect", ["full_duplex", "streamed"])
def test_client_gone_during_its_response_is_noticed(gateway, dialect):
    test_id = gateway.new_id()
    connection = send(gateway.envoy.ports[dialect], "/endless", {"x-test-id": test_id}, b"{}")
    assert connection.recv(4096)
    connection.close()
    seen = gateway.finished(test_id)
    assert seen.finishes == [CloseCause.RESET]
    assert seen.ends == 0


def test_buffered_response_with_trailers_ends(gateway):
    test_id = gateway.new_id()
    connection = send(gateway.envoy.ports["no_response_body"], "/endless", {"x-test-id": test_id}, b"{}")
    received = 0
    while received < 300:
        received += len(connection.recv(4096))
    seen = gateway.picker.director.wait_for(test_id, lambda seen: bool(seen.response_headers))
    assert seen.finishes == []
    connection.close()
    assert gateway.finished(test_id).finishes == [CloseCause.END]


def test_buffered_response_without_trailers_ends_early(gateway):
    test_id = gateway.new_id()
    connection = send(gateway.envoy.ports["no_bodies"], "/endless", {"x-test-id": test_id}, b"{}")
    assert connection.recv(4096)
    assert gateway.finished(test_id).finishes == [CloseCause.END]
    assert connection.recv(4096), "the response goes on"
    connection.close()


def test_client_gone_before_the_decision_leaves_nothing(gateway):
    test_id = gateway.new_id()
    connection = send(gateway.envoy.ports["full_duplex"], "/what", {"x-test-id": test_id, "x-test-later": "0.3"}, b"{}")
    connection.close()
    answer = read(send(gateway.envoy.ports["full_duplex"], "/what", {"x-test-id": gateway.new_id()}, b"{}"))
    assert answer.status == 200


def test_client_gone_during_its_body_disturbs_nobody(gateway, ask):
    def broken():
        yield b'{"prompt":"'
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        send(gateway.envoy.ports["full_duplex"], "/what", {"x-test-id": gateway.new_id()}, broken())
    assert ask("full_duplex", "/what", b"{}")[0].status == 200


@pytest.mark.parametrize("dialect", ["full_duplex", "no_response_body"])
def test_requests_at_once_do_not_mix(ask, dialect):
    bodies = [pattern(200 * 1024 + number) for number in range(40)]
    with ThreadPoolExecutor(max_workers=20) as threads:
        answers = list(threads.map(lambda body: ask(dialect, "/what", body)[0], bodies))
    assert [arrived(answer)["size"] for answer in answers] == [len(body) for body in bodies]


def test_a_gateway_that_only_observes_is_told_so(gateway):
    errors = gateway.picker.counters.protocol_errors
    before = errors[GrpcStatus.FAILED_PRECONDITION]
    answer = read(send(gateway.envoy.ports["observing"], "/what", {}, b"{}"))
    assert answer.status == 503
    gateway.picker.wait_for_close(lambda: errors[GrpcStatus.FAILED_PRECONDITION] == before + 1)


def test_nothing_that_envoy_does_here_is_out_of_order(ask, gateway):
    ask("full_duplex", "/what", b"{}")
    assert gateway.picker.counters.protocol_errors[GrpcStatus.INVALID_ARGUMENT] == 0
    assert gateway.envoy.stat("cluster.picker.upstream_cx_protocol_error") == 0
