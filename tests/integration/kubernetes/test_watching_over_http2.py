"""An API server that ends behind a load balancer, or whose machine is gone, is noticed on the watch itself, without a list."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from integration.kubernetes.api_server import PODS, ApiServer, pod, pool, status
from integration.kubernetes.conftest import Followed, discovering, eventually, ready
from integration.kubernetes.http2_front import Http2Front, fronted

pytestmark = pytest.mark.asyncio

ONE = {"a-rank-0": "10.0.0.1:8000"}
TWO = {**ONE, "b-rank-0": "10.0.0.2:8000"}
UNHEARD = "600s"
"""An interval of PING, and a time of a watch, that never come."""


@asynccontextmanager
async def watched(server: ApiServer, folder: Path, *protocols: str, **parameters: object) -> AsyncIterator[tuple[Http2Front, Followed]]:
    pool(server)
    pod(server, "a", "10.0.0.1")
    async with (
        fronted(server, folder, *protocols) as (front, file),
        discovering(server, file, **{"watchTimeout": UNHEARD, "pingInterval": UNHEARD, **parameters}) as followed,
    ):
        await ready(followed)
        await eventually(lambda: any(watch.path == PODS for watch in server.watches), lambda: "no watch is open")
        await eventually(lambda: front.plain > 0 or bool(front.watching(PODS)), lambda: "the answer to the watch has not begun")
        yield front, followed
        assert not followed.task.done()


async def test_after_goaway_the_watch_goes_on_over_another_connection_from_where_it_was(server, tmp_path):
    async with watched(server, tmp_path) as (front, followed):
        for turn in range(3):
            front.say_goodbye(PODS)
            pod(server, "b", f"10.0.1.{turn}")
            await followed.becomes({**ONE, "b-rank-0": f"10.0.1.{turn}:8000"})
        assert server.lists(PODS) == 1
        assert followed.outcomes("pods", "broken") == 3


async def test_what_comes_together_with_goaway_counts(server, tmp_path):
    async with watched(server, tmp_path) as (front, followed):
        server.mute = True
        pod(server, "b", "10.0.0.2")
        front.say_goodbye(PODS, json.dumps({"type": "ADDED", "object": server.objects[PODS]["b"]}).encode() + b"\n")
        await followed.becomes(TWO)
        await eventually(lambda: len(server.watched(PODS)) == 2, lambda: "the watch does not go on")
        assert server.watched(PODS)[1] == str(server.version)


async def test_a_machine_that_no_longer_answers_is_given_up_after_a_ping(server, tmp_path):
    async with watched(server, tmp_path, pingInterval="100ms") as (front, followed):
        assert followed.outcomes("pods", "broken") == 0
        front.fall_silent(PODS)
        pod(server, "b", "10.0.0.2")
        await followed.becomes(TWO)
        assert server.lists(PODS) == 1


async def test_a_server_that_answers_pings_is_believed(server, tmp_path):
    async with watched(server, tmp_path, pingInterval="500ms", watchTimeout="2s") as (_, followed):
        await eventually(lambda: followed.outcomes("pods", "quiet") == 1, lambda: "the watch does not end in its time")
        assert followed.outcomes("pods", "broken") == 0


@pytest.mark.parametrize(
    "raw",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x02", b"\xff" * 100],
    ids=["HTTP/1.1", "RST_STREAM", "noise"],
)
async def test_what_is_no_answer_breaks_the_watch_only(server, tmp_path, raw):
    async with watched(server, tmp_path, pingInterval="100ms") as (front, followed):
        front.send(PODS, raw)
        front.fall_silent(PODS)
        pod(server, "b", "10.0.0.2")
        await followed.becomes(TWO)
        assert server.lists(PODS) == 1


async def test_refusals_are_read_as_over_http_1(server, tmp_path, caplog):
    answers = iter([status(429, "TooManyRequests", {"Retry-After": "0"}), status(403, "Forbidden"), status(410, "Expired")])
    async with watched(server, tmp_path) as (_, followed):
        server.instead = lambda request: next(answers, None) if request.path == PODS and "watch" in request.query else None
        server.end_watches(PODS, cut=True)
        pod(server, "b", "10.0.0.2")
        await followed.becomes(TWO)
        assert server.lists(PODS) == 2
        assert (followed.outcomes("pods", "broken"), followed.outcomes("pods", "expired")) == (3, 1)
    assert "429 TooManyRequests" in caplog.text


async def test_a_front_without_http2_is_watched_over_http_1(server, tmp_path):
    async with watched(server, tmp_path, "http/1.1") as (front, followed):
        pod(server, "b", "10.0.0.2")
        await followed.becomes(TWO)
        assert front.connections == []
        assert front.plain >= 2


async def test_many_events_at_once_pass_the_window_of_flow_control(server, tmp_path):
    async with watched(server, tmp_path) as (_, followed):
        for number in range(300):
            pod(server, f"p{number}", f"10.0.2.{number % 250}", annotations={"note": "x" * 300})
        await eventually(lambda: len(followed.members()) == 301, lambda: f"{len(followed.members())} endpoints")
        assert server.lists(PODS) == 1
