"""Streams that are counted and timed."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from endpick.extproc.stream import GrpcStatus, ProtocolError
from endpick.requests.model import CloseCause
from endpick.serve.metrics import StreamMetrics, measured, name_of

PREFIX = "llm_d_epp_extproc_stream"


class Scripted:
    """A session that does what the message says."""

    waiting = None
    finished = False

    def __init__(self) -> None:
        self.closed: list[CloseCause] = []

    def receive(self, message: bytes) -> list[bytes]:
        if message == b"wrong":
            raise ProtocolError(GrpcStatus.INVALID_ARGUMENT, "wrong")
        self.finished = message == b"last"
        return [message]

    def resume(self, result: object) -> list[bytes]:
        if result is None:
            raise ProtocolError(GrpcStatus.RESOURCE_EXHAUSTED, "too much")
        return [b"resumed"]

    def fail(self, exception: BaseException) -> list[bytes]:
        return [b"failed"]

    def close(self, cause: CloseCause) -> None:
        self.closed.append(cause)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def times() -> list[float]:
    return [10.0]


@pytest.fixture
def opened(registry, times):
    return measured(Scripted, StreamMetrics(registry), lambda: times[0])


def test_a_stream_is_in_flight_until_it_is_closed_once(opened, registry, times):
    one, two = opened(), opened()
    assert registry.get_sample_value(f"{PREFIX}s_inflight") == 2
    assert one.receive(b"hello") == [b"hello"]
    assert (one.waiting, one.finished) == (None, False)
    times[0] += 0.25
    one.close(CloseCause.END)
    one.close(CloseCause.RESET)
    assert one._session.closed == [CloseCause.END, CloseCause.RESET]
    assert registry.get_sample_value(f"{PREFIX}s_inflight") == 1
    assert registry.get_sample_value(f"{PREFIX}_duration_seconds_sum") == 0.25
    assert registry.get_sample_value(f"{PREFIX}s_total", {"code": "OK"}) == 1
    assert registry.get_sample_value(f"{PREFIX}s_total", {"code": "Canceled"}) is None
    two.close(CloseCause.DISCONNECT)
    assert registry.get_sample_value(f"{PREFIX}s_inflight") == 0


@pytest.mark.parametrize(
    ("cause", "code"), [(CloseCause.RESET, "Canceled"), (CloseCause.ERROR, "Internal"), (CloseCause.DRAIN, "Unavailable")]
)
def test_how_a_stream_ended_is_its_code(opened, registry, cause, code):
    opened().close(cause)
    assert registry.get_sample_value(f"{PREFIX}s_total", {"code": code}) == 1


def test_answered_stream_counts_as_ok(opened, registry):
    session = opened()
    session.receive(b"last")
    session.close(CloseCause.RESET)
    assert registry.get_sample_value(f"{PREFIX}s_total", {"code": "OK"}) == 1


def test_a_stream_that_broke_the_protocol_has_the_status_it_got(opened, registry):
    for act, code in ((lambda one: one.receive(b"wrong"), "InvalidArgument"), (lambda one: one.resume(None), "ResourceExhausted")):
        session = opened()
        with pytest.raises(ProtocolError):
            act(session)
        session.close(CloseCause.ERROR)
        assert registry.get_sample_value(f"{PREFIX}s_total", {"code": code}) == 1
    assert (opened().resume(1), opened().fail(ValueError())) == ([b"resumed"], [b"failed"])


def test_statuses_are_spelt_as_llm_d_spells_them():
    assert [name_of(status) for status in (GrpcStatus.OK, GrpcStatus.FAILED_PRECONDITION)] == ["OK", "FailedPrecondition"]
