"""How long the worst bodies that the limits allow keep a thread busy: `python -m benchmarks.large_bodies`.

Prints milliseconds of the openai-parser for each body of up to 32 MiB: its limits and `orjson.loads` together, rendering its prompt,
writing another model into it. Then the same by the helper process of `endpick serve`: how long that takes, and for how long the event
loop stood still at most meanwhile; what the helper costs to start, and how much memory it has.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import uvloop
from prometheus_client import CollectorRegistry

from endpick.api import Parameters, ParsedRequest, PluginContext
from endpick.observability.metrics import EndpickMetrics
from endpick.plugins.discovery import Candidate, discover
from endpick.plugins.instance import Instance, build
from endpick.plugins.loader import load
from endpick.plugins.parameters import check_parameters
from endpick.plugins.resolution import Reference, resolve
from endpick.requests.large import BodyRead, LargeBody
from endpick.serve.bodies.reader import LargeBodies, LargeBodySettings

BYTES = 32 * 1024 * 1024
CONTAINERS = 131_072
VALUES = 2_097_152
PROMPTS = 4096
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def bodies() -> Iterator[tuple[str, str, bytes]]:
    """What it is, path and body."""
    yield "one string", COMPLETIONS, _prompt(b'"', b"a", b'"')
    yield "one string, all newlines", COMPLETIONS, _prompt(b'"', rb"\n", b'"')
    yield "one string, all escaped quotes", COMPLETIONS, _prompt(b'"', rb"\"", b'"')
    yield "one string, all \\u00e9", COMPLETIONS, _prompt(b'"', rb"\u00e9", b'"')
    yield "one string, all brackets", COMPLETIONS, _prompt(b'"', b"[{", b'"')
    yield "most values: token ids", COMPLETIONS, b'{"model":"m","prompt":[%s]}' % b",".join([b"1234567890"] * (VALUES - 8))
    yield "most values: floats", COMPLETIONS, b'{"model":"m","prompt":"p","x":[%s]}' % b",".join([b"1.234567890123"] * (VALUES - 8))
    yield "most values: short strings", COMPLETIONS, b'{"model":"m","prompt":"p","x":[%s]}' % b",".join([b'"\\u00e9abcdef"'] * (VALUES - 8))
    yield "most containers: messages", CHAT, b'{"model":"m","messages":[%s]}' % b",".join([_message(200)] * (CONTAINERS - 4))
    yield (
        "most containers: parts",
        CHAT,
        b'{"model":"m","messages":[{"role":"user","content":[%s]}]}' % b",".join([_part(200)] * (CONTAINERS - 8)),
    )
    yield (
        "most containers: tools",
        CHAT,
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[%s]}'
        % b",".join([b'{"type":"function","x":"%s"}' % (b"y" * 200)] * (CONTAINERS - 8)),
    )
    yield (
        "most keys",
        CHAT,
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"x":{%s}}'
        % b",".join(b'"%014d":0' % number for number in range(VALUES // 2 - 8)).ljust(10),
    )
    yield "many prompts", COMPLETIONS, b'{"model":"m","prompt":[%s]}' % b",".join([b'"%s"' % (b"z" * (BYTES // PROMPTS - 8))] * PROMPTS)
    depth = 1000
    yield (
        "deep nesting",
        COMPLETIONS,
        b'{"model":"m","prompt":"p","x":[%s]}' % b",".join([b"[" * depth + b"]" * depth] * (CONTAINERS // depth - 1)),
    )


def _prompt(before: bytes, filling: bytes, after: bytes) -> bytes:
    head, end = b'{"model":"m","prompt":' + before, after + b"}"
    return head + filling * ((BYTES - len(head) - len(end)) // len(filling)) + end


def _message(size: int) -> bytes:
    return b'{"role":"user","content":"%s"}' % (b"m" * size)


def _part(size: int) -> bytes:
    return b'{"type":"text","text":"%s"}' % (b"p" * size)


def openai_parser() -> Instance:
    """An instance as `endpick serve` builds it."""
    reference = Reference("openai-parser")
    candidate = resolve(reference, discover())
    assert isinstance(candidate, Candidate)
    loaded = load(candidate, reference).loaded
    assert loaded is not None
    parameters = check_parameters(loaded, {})
    assert isinstance(parameters, Parameters)
    instance = build(loaded, "openai-parser", parameters, None, PluginContext())
    assert isinstance(instance, Instance)
    return instance


def in_place(instance: Instance, path: str, body: bytes) -> tuple[float, float, float]:
    """Seconds of parsing, rendering and rewriting."""
    parser = instance.plugin
    begin = perf_counter()
    parsed = parser.parse(path, {}, body)  # type: ignore[attr-defined]
    assert isinstance(parsed, ParsedRequest), parsed
    parsing = perf_counter()
    _ = parsed.prompt.texts
    rendering = perf_counter()
    parser.rewrite_model(body, parsed, "another")  # type: ignore[attr-defined]
    return parsing - begin, rendering - parsing, perf_counter() - rendering


class Stillness:
    """The longest time between two turns of the event loop."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._task = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        last = perf_counter()
        while True:
            await asyncio.sleep(0)
            now = perf_counter()
            self.seconds, last = max(self.seconds, now - last), now

    def stop(self) -> None:
        """Measure no more."""
        self._task.cancel()


def resident_mib(pid: int) -> int:
    """How much memory a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4 // 1024


async def elsewhere(instance: Instance) -> None:
    """Print what the helper process takes, and what is left for the event loop."""
    reader = LargeBodies(LargeBodySettings(), EndpickMetrics(CollectorRegistry()), time.monotonic)
    begin = perf_counter()
    await reader.read(LargeBody(instance, CHAT, {}, b"{}", None, ""))
    started = perf_counter() - begin
    assert reader._helper is not None
    print(f"\na helper starts in {1e3 * started:.0f} ms and takes {resident_mib(reader._helper.pid)} MiB")
    print(f"{'body':34} {'MiB':>5} {'helper':>8} {'still':>8}  milliseconds")
    for name, path, body in bodies():
        stillness, begin = Stillness(), perf_counter()
        answer = await reader.read(LargeBody(instance, path, {}, body, "another", ""))
        taken = perf_counter() - begin
        stillness.stop()
        assert isinstance(answer, BodyRead), answer
        print(f"{name:34} {len(body) / 2**20:5.1f} {1e3 * taken:8.1f} {1e3 * stillness.seconds:8.1f}", flush=True)
    await reader.stop()


def main() -> None:
    """Print both tables."""
    instance = openai_parser()
    print(f"{'body':34} {'MiB':>5} {'parse':>8} {'render':>8} {'rewrite':>8} {'all':>8}  milliseconds")
    for name, path, body in bodies():
        times = in_place(instance, path, body)
        print(f"{name:34} {len(body) / 2**20:5.1f} " + " ".join(f"{1e3 * each:8.1f}" for each in (*times, sum(times))), flush=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(elsewhere(instance))


if __name__ == "__main__":
    main()
