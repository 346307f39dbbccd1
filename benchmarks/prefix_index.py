"""The prefix indexes: what an insertion, a match and a removal cost, and how many bytes an entry takes, for pools of all sizes.

Usage: python -m benchmarks.prefix_index [ENDPOINTS[:BLOCKS] ...]

`sent` is the index of what was sent, `told` that of what engines said, without the record of each engine. Each endpoint holds 100,000
blocks, or BLOCKS: conversations of 250 blocks. Every conversation is at 1 endpoint in a pool of one, at 2 in a pool
of 16, and at 32 in larger ones, as a prompt is that several agents share. A match looks up a conversation of 250 blocks that is
somewhere, and one that is nowhere.
"""

from __future__ import annotations

import gc
import resource
import struct
import sys
import time
from collections.abc import Callable
from multiprocessing import Process
from pathlib import Path
from random import Random
from typing import TypeVar

from endpick_builtin.producers.prefix_tree import PrefixTree
from endpick_kv_events.block_index import DEFAULT_TIER, TierIndex

T = TypeVar("T")
BLOCKS = 100_000
LENGTH = 250
SIZES = (1, 16, 256, 1024)
TRIES = 200


def copies(endpoints: int) -> int:
    return {1: 1, 16: 2}.get(endpoints, 32)


def conversations(endpoints: int, held: int) -> list[tuple[list[int], list[int]]]:
    """Conversations of blocks, each with the endpoints that hold it."""
    random, places = Random(1), copies(endpoints)
    count = held // LENGTH * endpoints // places
    return [
        ([random.getrandbits(64) for _ in range(LENGTH)], [(number * places + place) % endpoints for place in range(places)])
        for number in range(count)
    ]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def fingerprints(blocks: list[int]) -> bytes:
    """What the tree of prompts knows of a conversation."""
    return struct.pack(f"<{len(blocks)}Q", *blocks)


def looked_up(match: Callable[[T], object], which: list[T]) -> float:
    return microseconds(lambda number: match(which[number]), TRIES)


def microseconds(work: Callable[[int], object], tries: int) -> float:
    began = time.perf_counter()
    for number in range(tries):
        work(number)
    return (time.perf_counter() - began) / tries * 1e6


def measure(kind: str, endpoints: int, per_endpoint: int) -> None:
    data = conversations(endpoints, per_endpoint)
    prompts = [fingerprints(blocks) for blocks, _ in data]
    names = [f"pool/e{number}" for number in range(endpoints)]
    gc.collect()
    before = resident_bytes()
    if kind == "sent":
        sent = PrefixTree()
        sent.slots(names)

        def insert(number: int) -> None:
            for place in data[number][1]:
                sent.insert(names[place], bytes(memoryview(prompts[number])), BLOCKS)  # a copy, as each request brings its own

        remove, held = sent.remove, lambda: sent.entries
    else:
        told = TierIndex({})
        told.slots(names)

        def insert(number: int) -> None:
            for place in data[number][1]:
                told.add(place, DEFAULT_TIER, data[number][0])

        def remove(name: str) -> None:
            place = names.index(name)
            for blocks, places in data:
                if place in places:
                    told.discard(place, DEFAULT_TIER, blocks)

        held = lambda: per_endpoint * endpoints  # noqa: E731
    inserting = microseconds(insert, len(data)) / copies(endpoints)
    entries = held()
    each = (resident_bytes() - before) / entries
    random = Random(2)
    chosen = [data[random.randrange(len(data))][0] for _ in range(TRIES)]
    unknown = [[random.getrandbits(64) for _ in range(LENGTH)] for _ in range(TRIES)]
    if kind == "sent":
        hit, miss = (looked_up(sent.match, [fingerprints(each) for each in which]) for which in (chosen, unknown))
    else:
        hit, miss = (looked_up(told.match, which) for which in (chosen, unknown))
    began = time.perf_counter()
    remove(names[0])
    removing = (time.perf_counter() - began) * 1e6 / per_endpoint
    print(
        f"| {kind} | {endpoints} | {entries:,} | {inserting:.0f} ({inserting / LENGTH:.2f} a block) | {hit:.0f} | {miss:.1f} "
        f"| {removing:.2f} a block | {each:.0f} |",
        flush=True,
    )


if __name__ == "__main__":
    print("| index | endpoints | entries | insert 250 blocks, µs | match 250, µs | match none, µs | remove, µs | bytes an entry |")
    print("|---|---|---|---|---|---|---|---|")
    for size in sys.argv[1:] or map(str, SIZES):
        count, _, blocks = size.partition(":")
        for name in ("sent", "told"):
            alone = Process(target=measure, args=(name, int(count), int(blocks or BLOCKS)))  # memory is its own then
            alone.start()
            alone.join()
