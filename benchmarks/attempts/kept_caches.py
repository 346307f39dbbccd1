"""What is remembered because it takes long to make, by what clients and gateways say: replies, and the keys of blocks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.gateway import answer_messages, body_messages, grpc, headers_message
from benchmarks.attempts.gateway import request as whole_request
from benchmarks.attempts.kept import beside
from benchmarks.attempts.streams import exchanged, replies

_SHORT = b'{"model":"m","prompt":"p"}'
_LITTLE = "--max-memory=150Mi"
_BLOCK_TOKENS = 1024
_BLOCK_BYTES = 4 * _BLOCK_TOKENS


def _answered_by(served: str) -> bytes:
    """A request, and its answer, of which the gateway says that it came from there."""
    headers, *bodies = answer_messages(b"{}", {"content-type": "application/json"})
    headers.metadata_context.filter_metadata["envoy.lb"].update({"x-gateway-destination-endpoint-served": served})
    return grpc([headers_message(), *body_messages(_SHORT), headers, *bodies])


async def answers_whose_headers_change(target: Target) -> Iterable[str]:
    """A plugin repeats in a header of each answer who served it, and a gateway names another one of 40,000 wide characters each time."""
    told = set[str]()

    async def some() -> None:
        payloads = [_answered_by(f"{target.rng.random()}" + "\U0001f600" + "e" * 40_000) for _ in range(40)]
        heard = await exchanged(target.ext_proc_port, payloads)
        for stream in heard.values():
            for reply in replies(stream):
                changed = reply.response_headers.response.header_mutation.set_headers
                told.update(each.header.raw_value.decode() for each in changed)

    for _ in range(14):
        await asyncio.gather(some(), some())
    return [] if len(told) > 1000 else [f"the attempt was none: only {len(told)} servers were repeated"]


def _blocks(rng: random.Random, count: int) -> bytes:
    prompts = ",".join(f'"{rng.getrandbits(64):x}{"p" * (_BLOCK_BYTES - 16)}"' for _ in range(count))
    return b'{"model":"m","prompt":[' + prompts.encode() + b"]}"


async def blocks_that_are_never_seen_again(target: Target) -> None:
    """Bodies below `--large-body` of 250 prompts, each one block of 1024 tokens that no other prompt has, for keys by FNV, in 150 MiB."""
    for _ in range(6):
        payloads = [whole_request(_blocks(target.rng, 250)) for _ in range(6)]
        await asyncio.gather(*(exchanged(target.ext_proc_port, payloads[half::2], 4.0) for half in range(2)))


async def long_prompts_that_are_noted_in_advance(target: Target) -> None:
    """Bodies of a megabyte that are one prompt which no endpoint holds, in blocks of 256 tokens that are noted as held where it is sent."""
    for _ in range(6):
        bodies = [b'{"model":"m","prompt":"%s' % (b"%032x" % target.rng.getrandbits(128) * 32_000) + b'"}' for _ in range(4)]
        await exchanged(target.ext_proc_port, [whole_request(body) for body in bodies], 4.0)


async def salts_that_are_never_seen_again(target: Target) -> None:
    """Each request has a cache salt of its own, of 1000 characters of four bytes, and one block, for keys by FNV, in 150 MiB."""

    def bodies() -> Iterable[bytes]:
        for _ in range(400):
            odd = f"{target.rng.random()}" + "\U0001f600" * 1000
            yield f'{{"model":"m","cache_salt":"{odd}","prompt":"{"p" * _BLOCK_BYTES}"}}'.encode()

    for _ in range(5):
        await asyncio.gather(*(exchanged(target.ext_proc_port, [whole_request(body) for body in bodies()], 3.0) for _ in range(3)))


_VERIFYING = beside("- type: destination-endpoint-served-verifier\n")
_PRECISE = beside(
    "- type: token-producer\n- type: precise-prefix-cache-producer\n"
    f"  parameters: {{tokenProcessorConfig: {{blockSizeTokens: {_BLOCK_TOKENS}}}, kvEventsConfig: {{discoverPods: false}}}}\n",
).replace(
    "- type: prefix-cache-scorer",
    "- {type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: precise-prefix-cache-producer}}",
)
_NOTED = _PRECISE.replace("{discoverPods: false}", "{discoverPods: false}, speculativeIndexing: true").replace(
    f"blockSizeTokens: {_BLOCK_TOKENS}", "blockSizeTokens: 256"
)
ATTEMPTS = (
    Attempt(answers_whose_headers_change, flags=(_LITTLE,), config=_VERIFYING, may_lose=True),
    # Of grpcio: "It has no turns in reading", so that many of these are read in one.
    Attempt(blocks_that_are_never_seen_again, flags=(_LITTLE,), config=_PRECISE, may_lose=True, transports=("h2",)),
    Attempt(long_prompts_that_are_noted_in_advance, flags=(_LITTLE,), config=_NOTED, may_lose=True, transports=("h2",)),
    Attempt(salts_that_are_never_seen_again, flags=(_LITTLE,), config=_PRECISE, may_lose=True, transports=("h2",)),
)
