"""Recordings of real clients, replayed whole, cut anywhere, and damaged at random.

The recordings are client bytes of Envoy 1.40 (three ext_proc streams), grpcio 1.85 (health calls) and nghttp2's h2load 1.52.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jh2._hazmat import Decoder

from endpick.extproc.stream import StreamSession
from endpick.transport.h2.connection import Connection
from endpick.transport.h2.frames import FrameType
from endpick.transport.limits import Limits, TransportCounters
from endpick.transport.methods import EXT_PROC_PATH, Method
from unit.transport.peer import EchoSession, FakeTask, split_frames

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "transport"
RECORDINGS = {path.stem: path.read_bytes() for path in sorted(FIXTURES.glob("*.bin"))}


class Replay:
    """A server to which recorded bytes are played."""

    def __init__(self) -> None:
        self.sessions: list[EchoSession] = []
        self.counters = TransportCounters()
        methods = {path: Method(self._open) for path in (EXT_PROC_PATH, "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch")}
        self.connection = Connection(methods, Limits(), self.counters, self._spawn, 0.0)
        self.output = bytearray()

    def _open(self) -> StreamSession:
        self.sessions.append(EchoSession())
        return self.sessions[-1]

    def _spawn(self, stream, waiting) -> None:
        stream.task = FakeTask()

    def play(self, pieces: list[bytes]) -> Replay:
        for piece in pieces:
            self.connection.receive(piece, 1.0)
            self.output += self.connection.outbox.take()
        return self

    def seen(self) -> tuple[object, ...]:
        """The state that must not depend on the cuts."""
        return (
            [(session.received, session.causes) for session in self.sessions],
            self.counters.snapshot(),
            self.connection.lifetime.closing,
            sorted(self.connection.streams.open),
            bytes(self.output),
        )


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


PLACES = st.lists(st.integers(0, 1 << 20), max_size=30)
NAMES = st.sampled_from(sorted(RECORDINGS))


@pytest.mark.parametrize(("name", "streams", "messages"), [("envoy-1", 3, 15), ("grpcio-1", 4, 3), ("nghttp2-1", 3, 3)])
def test_real_clients_are_understood(name, streams, messages):
    recording = next(data for stem, data in RECORDINGS.items() if stem.startswith(name))
    replay = Replay().play([recording])
    assert replay.counters.connection_errors == 0
    assert replay.counters.stream_errors == 0
    assert replay.counters.streams_opened == streams
    assert replay.counters.messages_received >= messages
    assert all(len(session.causes) <= 1 for session in replay.sessions)


@given(NAMES, PLACES)
@settings(deadline=None)
def test_recording_means_the_same_however_it_is_cut(name, places):
    recording = RECORDINGS[name]
    assert Replay().play(cut(recording, places)).seen() == Replay().play([recording]).seen()


@given(NAMES, PLACES, st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=8), st.integers(0, 1 << 20))
@settings(deadline=None, max_examples=60)
def test_damaged_recording_ends_cleanly_however_it_is_cut(name, places, changes, keep):
    damaged = bytearray(RECORDINGS[name])
    for place, byte in changes:
        damaged[place % len(damaged)] = byte
    damaged = damaged[: keep % (len(damaged) + 1)] if keep % 3 == 0 else damaged
    whole = Replay().play([bytes(damaged)])
    pieces = Replay().play(cut(bytes(damaged), places))
    assert pieces.seen() == whole.seen()
    if whole.connection.lifetime.closing:
        assert whole.counters.connection_errors == 1
        assert b"\x07\x00\x00\x00\x00\x00" in whole.output, "no GOAWAY"
    whole.connection.lost()
    assert all(len(session.causes) == 1 for session in whole.sessions), "a session was not closed, or twice"
    assert_readable(bytes(whole.output))


def assert_readable(output: bytes) -> None:
    """The output is valid HTTP/2."""
    decoder = Decoder(2**16)
    ended = set()
    for kind, flags, stream, payload in split_frames(output)[0]:
        assert kind <= FrameType.CONTINUATION
        if kind == FrameType.HEADERS:
            decoder.decode(payload, True)
        if kind in (FrameType.HEADERS, FrameType.DATA):
            assert stream not in ended, "a frame after the end of its stream"
        if flags & 1 and kind in (FrameType.HEADERS, FrameType.DATA):
            ended.add(stream)
