"""The page of metrics where every name that clients choose is as long and as wide as it may be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

from benchmarks.attempts.bodies import REWRITE
from benchmarks.attempts.catalogue import CONFIG, Attempt, Target
from benchmarks.attempts.gateway import answer_messages, answered, connected, grpc, request
from benchmarks.attempts.streams import exchanged

_WIDE = "\U0001f600" * 125
_EVENTS = b'data: {"usage":{"prompt_tokens":9,"completion_tokens":9,"prompt_tokens_details":{"cached_tokens":3}}}\n\n' * 3
_ANSWER = grpc(answer_messages(_EVENTS, {"content-type": "text/event-stream"}, 100))
_ASKING = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"


def _told(number: int) -> bytes:
    name = f"{number:03}"
    body = json.dumps({"model": f"{name}{_WIDE}", "prompt": "p"}, ensure_ascii=False).encode()
    whose = {"x-llm-d-inference-fairness-id": f"{name}f{_WIDE[:124]}", REWRITE: f"{name}t{_WIDE[:124]}"}
    return request(body, whose) + _ANSWER


async def _filled(target: Target) -> None:
    """Every combination that metrics tell apart is one of names as wide as labels can be."""
    numbers = [*range(260)]
    for start in range(0, len(numbers), 65):
        await exchanged(target.ext_proc_port, [_told(number) for number in numbers[start : start + 65]], 4.0)


async def pages_of_wide_names(target: Target) -> Iterable[str]:
    """250 combinations of names of 128 characters of four bytes, on a page that thirty clients ask for one by one, and read slowly."""
    await _filled(target)
    sizes = list[int]()

    async def reading(late: float) -> None:
        await asyncio.sleep(late)
        async with connected(target.metrics_port, source=f"127.0.7.{1 + round(late * 10)}") as (reader, writer):
            writer.write(_ASKING)
            sizes.append(int((await reader.readuntil(b"\r\n\r\n")).lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            await answered(reader, 1, 1 << 18)
            await asyncio.sleep(6 - late)

    async with asyncio.timeout(20):
        await asyncio.gather(*(reading(number / 5) for number in range(30)), return_exceptions=True)
    told = f"the attempt was none: of {len(sizes)} pages the longest had {max(sizes, default=0) >> 20} MiB"
    return [] if len(sizes) > 10 and max(sizes) > 1 << 20 else [told]


async def pages_of_wide_names_at_one_moment(target: Target) -> None:
    """The same page, asked for plain and compressed by thirty clients at one moment, again and again, which take all of it."""
    await _filled(target)

    async def reading(how: bytes) -> None:
        async with connected(target.metrics_port, source=f"127.0.8.{target.rng.randrange(1, 250)}") as (reader, writer):
            writer.write(_ASKING.replace(b"\r\n\r\n", how))
            await answered(reader, 4, 1 << 28)

    for _ in range(3):
        ways = [b"\r\naccept-encoding: gzip\r\n\r\n", b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"] * 10
        await asyncio.gather(*map(reading, ways), return_exceptions=True)


async def pages_that_are_left_amid(target: Target) -> None:
    """The same page, which forty clients at a time begin to take, plain or compressed, and leave at any byte of it, again and again."""
    await _filled(target)

    async def leaving() -> None:
        async with connected(target.metrics_port, source=f"127.0.9.{target.rng.randrange(1, 250)}") as (reader, writer):
            how = target.rng.choice((b"\r\naccept-encoding: gzip\r\n\r\n", b"\r\n\r\n"))
            writer.write(_ASKING.replace(b"\r\n\r\n", how) * target.rng.choice((1, 1, 5)))
            await answered(reader, target.rng.choice((0.01, 0.3, 1.0)), target.rng.choice((1, 10_000, 3_000_000)))

    while target.seconds_left() > 2:
        await asyncio.gather(*(leaving() for _ in range(40)), return_exceptions=True)


_QUEUES = CONFIG.replace("kind:", "featureGates: [flowControl]\nkind:", 1)
ATTEMPTS = (
    Attempt(pages_of_wide_names, config=_QUEUES),
    Attempt(pages_of_wide_names_at_one_moment, config=_QUEUES),
    Attempt(pages_that_are_left_amid, config=_QUEUES),
)
