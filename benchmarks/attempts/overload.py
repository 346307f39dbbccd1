"""More than the picker may hold: waves of bodies, streams that stop anywhere, queues that fill and empty, replies that are not taken."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
from collections.abc import Iterable
from contextlib import suppress
from itertools import count

import aiohttp

from benchmarks.attempts.bodies import EVERY_PARSER, GENERATE, REWRITE, framed, protobuf_field
from benchmarks.attempts.catalogue import CONFIG, Attempt, Target
from benchmarks.attempts.gateway import HELLO, answer_messages, answered, connected, data, grpc, headers_message, opened, request
from benchmarks.attempts.streams import exchanged
from endpick.transport.h2 import frames

_LITTLE = "--max-memory=150Mi"
_SOME = "--max-memory=300Mi"
_PLUGINS = """\
- {type: concurrency-detector, parameters: {maxConcurrency: 4}}
- {type: priority-holdback-policy, parameters: {minCeiling: 0.3}}
- type: round-robin-fairness-policy
"""
_QUEUES = (
    CONFIG.replace("kind:", "featureGates: [flowControl]\nkind:", 1).replace("plugins:\n", f"plugins:\n{_PLUGINS}", 1)
    + """\
objectives: [{name: later, priority: -1}, {name: last, priority: -2}]
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  usageLimitPolicyPluginRef: priority-holdback-policy
  defaultRequestTTL: 3s
  defaultNegativePriorityBand: {fairnessPolicyRef: round-robin-fairness-policy, maxRequests: 20000}
  priorityBands: [{priority: 0, fairnessPolicyRef: round-robin-fairness-policy, maxRequests: 1000}]
"""
)
"""What attempts send is of negative priority, which a third of the servers has no room for: that is for those that behave."""
_EXPERIMENTS = "--allow-experimental-plugins"
_RESET = 8
_WINDOW_BYTES = 3_900_000


async def _held(target: Target, payload: bytes, streams: int, seconds: float, last: bytes = b"") -> None:
    """So many streams of one connection with the same beginning, as far as the first windows go; at last perhaps the end of each."""
    async with connected(target.ext_proc_port, source=f"127.0.3.{target.rng.randrange(1, 250)}") as (reader, writer):
        ids = range(1, 2 * streams, 2)
        writer.write(HELLO + b"".join(opened(each) + data(each, payload) for each in ids))
        taken = asyncio.create_task(answered(reader, seconds + 2, 1 << 30))
        await asyncio.sleep(seconds)
        if last and not writer.is_closing():
            writer.write(b"".join(data(each, last) for each in ids))
            await asyncio.sleep(0.5)
        taken.cancel()
        with suppress(asyncio.CancelledError):
            await taken


async def _held_by_many(target: Target, payload: bytes, streams: int, seconds: float) -> None:
    """The same on as many connections as are needed for each to keep within the first windows of both transports."""
    each = max(1, min(streams, _WINDOW_BYTES // max(1, len(payload))))
    await asyncio.gather(*(_held(target, payload, min(each, streams - begun), seconds) for begun in range(0, streams, each)))


async def waves_of_bodies(target: Target) -> None:
    """A hundred connections with bodies of 900 KB that all miss a byte, which comes at one moment, wave after wave, in 150 MiB."""
    payload = request(b'{"model":"m","prompt":"' + target.rng.choice((b"x", b"\\n", "é".encode())) * 450_000 + b'"}')
    await asyncio.gather(*(_held(target, payload[:-1], 1, 0.7, payload[-1:]) for _ in range(100)))


async def bodies_that_grow_when_they_are_read(target: Target) -> None:
    """Bodies that become most beside their length: objects, keys, characters of four bytes, token ids, as many as wait at once."""
    many = target.rng.choice((60, 150))
    shapes = (b'{"a":{}},' * 900, b'"a":0,' * 3000, b"[0.5]," * 1800, b'"' + "😀x".encode() * 40_000 + b'",')
    shape = target.rng.choice(shapes)
    rest = b'"k":{' + shape[:-1] + b"}" if shape.startswith(b'"a"') else b'"k":[' + shape[:-1] + b"]"
    text = b'{"model":"m","prompt":"p",' + rest + b"}"
    tokens = framed(protobuf_field(2, protobuf_field(2, b"\x01" * 200_000)))
    await asyncio.gather(
        _held_by_many(target, request(text), 3 * many, 1.0),
        _held_by_many(target, request(tokens, {":path": GENERATE, "content-type": "application/grpc"}), many, 1.0),
    )


async def halves_of_messages(target: Target) -> None:
    """2400 streams on forty connections and more whose message of 64 MB has begun, of a body or of headers, and never goes on."""
    begin = headers_message().SerializeToString()
    body = b"\x22" + b"\x80\x80\x80\x1e\x0a\xfa\xff\xff\x1d"
    half = target.rng.choice((begin[:3], body, b"\x12\xff\xff\x0f", b""))
    payload = grpc([headers_message()]) + struct.pack(">BI", 0, 63 << 20) + half
    await _held_by_many(target, payload + b"x" * target.rng.choice((0, 1000)), 2400, 1.5)


async def halves_of_long_messages(target: Target) -> None:
    """The same with 200 KB of each message, more than there is memory for."""
    payload = grpc([headers_message()]) + struct.pack(">BI", 0, 63 << 20) + b"\x22\x80\x80\x80\x1e\x0a\xfa\xff\xff\x1d"
    await _held_by_many(target, payload + b"x" * 200_000, 2400, 1.5)


async def streams_that_stop_at_each_phase(target: Target) -> None:
    """Four thousand streams that stop at each phase: bare, headers, half a body, routed, answered, half answered; then gone or reset."""
    whole = request(b'{"model":"m","prompt":"p"}')
    answer = grpc(answer_messages(b'data: {"usage":{}}\n\n' * 20, {"content-type": "text/event-stream"}, 30))
    phases = (b"", whole[:3], grpc([headers_message()]), whole[:-2], whole, whole + answer[:90], whole + answer[:-5], whole + answer)

    async def stopped(phase: bytes) -> None:
        async with connected(target.ext_proc_port) as (reader, writer):
            ids = range(1, 1001, 2)
            writer.write(HELLO + b"".join(opened(each) + data(each, phase) if phase else opened(each) for each in ids))
            await answered(reader, 1)
            if target.rng.random() < 0.5:
                writer.write(b"".join(frames.rst_stream(each, _RESET) for each in ids))
                await answered(reader, 0.3)

    await asyncio.gather(*map(stopped, phases))


async def replies_that_are_not_taken(target: Target) -> None:
    """Bodies and answers of a megabyte whose replies are never read, or for which no window is open, on 150 connections."""
    prompt = request(b'{"model":"m","prompt":"' + b"x" * 900_000 + b'"}', {REWRITE: "another"})
    open_window = target.rng.random() < 0.5

    async def deaf() -> None:
        async with connected(target.ext_proc_port) as (_, writer):
            hello = frames.PREFACE + frames.settings({4: 2**31 - 1 if open_window else 0}) + frames.window_update(0, 2**30)
            writer.write(hello + b"".join(opened(each) + data(each, prompt) for each in range(1, 9, 2)))
            with suppress(TimeoutError):
                async with asyncio.timeout(1.5):
                    await writer.drain()
            await asyncio.sleep(1)

    await asyncio.gather(*(deaf() for _ in range(150)))


async def answers_without_an_end(target: Target) -> None:
    """Two hundred answers of which half a megabyte is kept each because no event, frame or object ends, in 300 MiB."""
    kind = target.rng.choice(("text/event-stream", "application/grpc", "application/json"))
    begin = b"\0\0\3\xff\xff" if kind == "application/grpc" else b"data: "
    payload = request(b'{"model":"m","prompt":"p"}') + grpc(answer_messages(begin + b"x" * 240_000, {"content-type": kind}, 60_000)[:-1])
    await _held_by_many(target, payload, 200, 1.5)


async def envelopes_that_wait(target: Target) -> None:
    """Streams with 250 KB of headers and metadata each, before their body comes, or while a large body of theirs waits to be parsed."""
    message = headers_message({"x-a": "a" * 100_000})
    message.metadata_context.filter_metadata["n"].update({"k": ["v"] * target.rng.choice((10, 30_000))})
    heavy = request(b'{"model":"m","prompt":[' + b"[1]," * 9000 + b"[1]]}")
    waiting = grpc([message])
    await asyncio.gather(_held_by_many(target, waiting, 300, 1.5), _held_by_many(target, heavy + waiting * 3, 100, 1.5))


async def large_bodies_beside_little_memory(target: Target) -> None:
    """Twenty bodies of 20 MB at once, of which each has its model in two million places, for a name that makes it eight times as long."""
    name = "n" * target.rng.choice((1, 60, 90, 1024))
    bodies = (
        b'{"prompt":"p"' + b',"model":"m"' * 1_500_000 + b"}",
        b'{"model":"m","prompt":"' + b"x" * 20_000_000 + b'"}',
        b'{"model":"m","prompt":[' + b"1," * 2_000_000 + b"1]}",
    )
    payload = request(target.rng.choice(bodies), {REWRITE: name})
    await asyncio.gather(*(exchanged(target.ext_proc_port, [payload], 5.0) for _ in range(20)))


_flows = count()


def _waiting(target: Target, streams: int) -> bytes:
    """Streams of as many flows and objectives."""
    out = [HELLO]
    size = target.rng.choice((10, 900))
    for each in range(1, 2 * streams, 2):
        whose = {"x-llm-d-inference-fairness-id": f"{next(_flows)}" + "f" * size}
        objective = {"x-llm-d-inference-objective": target.rng.choice(("later", "last"))}
        out.append(opened(each) + data(each, request(b'{"model":"m","prompt":"p"}', whose | objective)))
    return b"".join(out)


async def queues_that_are_left_at_once(target: Target) -> None:
    """Nine thousand requests wait in as many flows, and are reset, dropped or run out of time at one moment, beside reloads."""

    async def gone(streams: int, seconds: float) -> None:
        async with connected(target.ext_proc_port) as (reader, writer):
            writer.write(_waiting(target, streams))
            await answered(reader, seconds)
            if target.rng.random() < 0.5:
                writer.write(b"".join(frames.rst_stream(each, _RESET) for each in range(1, 2 * streams, 2)))
                await answered(reader, 0.2)

    together = asyncio.gather(*(gone(3000, 2.5) for _ in range(3)))
    for _ in range(3):
        await asyncio.sleep(0.6)
        os.kill(target.pid, signal.SIGHUP)
    await together


async def queues_that_a_reload_takes_away(target: Target) -> None:
    """The same while reloads make queues smaller, take them away, bring them back, put them in another order, and cannot be read."""
    path = target.folder / "config.yaml"
    usual = path.read_text()
    few = usual.replace("maxRequests: 20000", "maxRequests: 3")
    others = usual.replace("round-robin-fairness-policy", "global-strict-fairness-policy").replace("TTL: 3s", "TTL: 4s")
    none = usual.replace("featureGates: [flowControl]\n", "").partition("flowControl:\n")[0]
    try:
        async with connected(target.ext_proc_port) as (reader, writer), connected(target.ext_proc_port) as (other, more):
            writer.write(_waiting(target, 3500))
            more.write(_waiting(target, 3500))
            for text in target.rng.sample([few, none, usual, others, usual[:-40], ""], 6):
                path.write_text(text)
                os.kill(target.pid, signal.SIGHUP)
                await answered(reader, 0.4)
                await answered(other, 0.1)
    finally:
        path.write_text(usual)
        os.kill(target.pid, signal.SIGHUP)


async def waiting_bodies_with_wide_hints(target: Target) -> None:
    """Requests that wait with a subset hint of a hundred thousand entries each, and all go at the same moment, in 300 MiB."""
    message = headers_message({"x-llm-d-inference-fairness-id": f"{next(_flows)}", "x-llm-d-inference-objective": "later"})
    hint = ",".join(f"{each:x}" for each in range(40_000))
    message.metadata_context.filter_metadata["envoy.lb.subset_hint"].update({"x-gateway-destination-endpoint-subset": hint})
    payload = grpc([message]) + request(b'{"model":"m","prompt":"p"}')[len(grpc([headers_message()])) :]
    await asyncio.gather(*(_held(target, payload, 60, 2.2) for _ in range(2)))


async def an_index_that_is_filled(target: Target) -> None:
    """Prompts of which no two blocks are alike, under models that change, faster than memory allows the index to grow, in 150 MiB."""

    async def filled() -> None:
        for _ in range(4):
            bodies = [b'{"model":"%d","prompt":"%s"}' % (each, target.rng.randbytes(60_000).hex().encode()) for each in range(8)]
            await exchanged(target.ext_proc_port, [request(body) for body in bodies], 1.5)

    await asyncio.gather(*(filled() for _ in range(4)))


async def is_normal_again(target: Target) -> Iterable[str]:
    """Bodies that take all there is and are given up, and whether requests are refused still five seconds after the last one."""
    payload = request(b'{"model":"m","prompt":"' + b"x" * 900_000 + b'"}')
    await asyncio.gather(*(_held(target, payload[:-1], 4, 1.0) for _ in range(60)))
    async with asyncio.timeout(8), aiohttp.ClientSession() as session:
        for _ in range(10):
            async with session.get(f"http://127.0.0.1:{target.metrics_port}/metrics") as page:
                stages = [
                    line for line in (await page.text()).splitlines() if line.startswith("endpick_overload_stage") and line.endswith(" 1.0")
                ]
            if any(stage in stages[0] for stage in ("normal", "releasing", "shedding")):
                return []
            await asyncio.sleep(0.5)
    return [f"five seconds after the last body it says {stages}"]


# "New requests get 503 at their headers" and "requests whose bodies are still coming get 503": where memory is short on purpose, those of
# the well-behaved may be among them.
ATTEMPTS = (
    Attempt(waves_of_bodies, flags=(_LITTLE,), may_lose=True),
    Attempt(bodies_that_grow_when_they_are_read, flags=(_SOME,), config=EVERY_PARSER, may_lose=True),
    Attempt(halves_of_messages, flags=(_SOME,)),
    Attempt(halves_of_long_messages, flags=(_SOME,), may_lose=True),
    Attempt(streams_that_stop_at_each_phase),
    Attempt(replies_that_are_not_taken, flags=(_SOME,), may_lose=True),
    Attempt(answers_without_an_end, flags=(_SOME,)),
    Attempt(envelopes_that_wait, flags=(_SOME,)),
    Attempt(large_bodies_beside_little_memory, flags=(_SOME,), may_lose=True),
    # "On `--transport grpcio`, others wait for a flood of streams, and may lose some."
    Attempt(queues_that_are_left_at_once, config=_QUEUES, flags=(_EXPERIMENTS,), transports=("h2",)),
    Attempt(queues_that_a_reload_takes_away, config=_QUEUES, flags=(_EXPERIMENTS,), transports=("h2",)),
    Attempt(waiting_bodies_with_wide_hints, flags=(_SOME, _EXPERIMENTS), config=_QUEUES),
    Attempt(an_index_that_is_filled, flags=(_LITTLE,)),
    Attempt(is_normal_again, flags=(_SOME,), may_lose=True),
)
