"""Answers of `/kv_event_sources`, as captured from vLLM 0.32."""

from __future__ import annotations

import orjson
import pytest

from endpick.api import Endpoint
from endpick_kv_events.messages import EventSource, source_of

VLLM = (
    b'{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:18201","replay_endpoint":"tcp://127.0.0.1:18202",'
    b'"buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"kv@127.0.0.1:18200@tiny"}}'
)
FOUR = Endpoint("pool/a", "10.0.0.7", 8000)
SIX = Endpoint("pool/a", "fd00::7", 8000)


def ranks(*numbers: int) -> bytes:
    return orjson.dumps({str(number): {"endpoint": f"tcp://*:{5557 + number}", "replay_endpoint": None} for number in numbers})


@pytest.mark.parametrize(
    ("answer", "endpoint", "rank", "expected"),
    [
        (VLLM, FOUR, 0, EventSource("tcp://10.0.0.7:18201", "tcp://127.0.0.1:18202")),
        (VLLM, SIX, 0, EventSource("tcp://[fd00::7]:18201", "tcp://127.0.0.1:18202")),
        (ranks(0, 1, 2), FOUR, 2, EventSource("tcp://10.0.0.7:5559")),
        (ranks(3), FOUR, 0, EventSource("tcp://10.0.0.7:5560")),
        (b'{"0":{"endpoint":"ipc:///var/run/docker.sock"}}', FOUR, 0, None),
        (b'{"0":{"endpoint":"tcp://*:1","replay_endpoint":"inproc://x"}}', FOUR, 0, EventSource("tcp://10.0.0.7:1")),
        (b"<html>", FOUR, 0, None),
    ],
)
def test_the_addresses_of_a_rank(answer, endpoint, rank, expected):
    assert source_of(answer, endpoint, rank) == expected
