"""What plugins keep of requests and of those who send them: for as long as a request lasts, and beyond it."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import Iterable
from itertools import count

import aiohttp

from benchmarks.attempts.bodies import REWRITE
from benchmarks.attempts.catalogue import CONFIG, Attempt, Target
from benchmarks.attempts.gateway import HELLO, answer_messages, answered, connected, data, grpc, opened, request
from benchmarks.attempts.posing import hostile_entries, write_endpoints
from benchmarks.attempts.streams import exchanged
from endpick.transport.h2 import frames

_LITTLE = "--max-memory=150Mi"
_SOME = "--max-memory=300Mi"
EXPERIMENTS = "--allow-experimental-plugins"


def beside(plugins: str, profile: str = "") -> str:
    """The usual configuration with further instances, and more of them in its profile."""
    config = CONFIG.replace("plugins:\n", f"plugins:\n{plugins}", 1)
    return config.replace("  - pluginRef: max-score-picker", f"{profile}  - pluginRef: max-score-picker")


_CHAT = {":path": "/v1/chat/completions"}
_SHORT = b'{"model":"m","prompt":"p"}'
_ANSWER = grpc(answer_messages(b'{"usage":{"prompt_tokens":1,"completion_tokens":2}}', {"content-type": "application/json"}))


def _chat(parts: Iterable[dict[str, object]]) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": [*parts]}]}).encode()


async def hold(target: Target, payloads: Iterable[bytes], seconds: float, *, reset: bool = False) -> None:
    """Streams of one connection that say this, and stay; at last they are reset, or their connection goes."""
    async with connected(target.ext_proc_port, source=f"127.0.3.{target.rng.randrange(1, 250)}") as (reader, writer):
        taken = asyncio.create_task(answered(reader, seconds + 2, 1 << 30))
        writer.write(HELLO)
        last = 1
        for last, payload in zip(count(1, 2), payloads, strict=False):
            writer.write(opened(last) + data(last, payload))
            if last % 101 == 0:
                await writer.drain()
        await asyncio.sleep(seconds)
        if reset:
            writer.write(b"".join(frames.rst_stream(each, 8) for each in range(1, last + 1, 2)))
            await asyncio.sleep(0.3)
        taken.cancel()
        await asyncio.gather(taken, return_exceptions=True)


async def page_of(target: Target) -> str:
    """What a scraper reads."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{target.metrics_port}/metrics") as page:
        return await page.text()


async def films_that_last_for_years(target: Target) -> None:
    """Eight hundred requests of 200 bytes stay, each with a film of years, a picture of 65,535 by 65,535 pixels, or both, in 150 MiB."""
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 65_535, 65_535)
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(head + bytes(20)).decode()}}
    film: dict[str, object] = {"type": "video_url", "video_url": {"url": "https://a/b"}}
    body = _chat(target.rng.choice(([picture], [film], [film, picture])))  # type: ignore[list-item]
    years = {"x-llm-d-video-duration-seconds": "1e9", "x-llm-d-video-fps": "1e9", "x-llm-d-video-resolution": "65536x65536"}
    await asyncio.gather(*(hold(target, [request(body, _CHAT | years)] * 100, 2.0) for _ in range(8)))


async def a_thousand_pictures_each(target: Target) -> None:
    """Three hundred requests that stay, each with a thousand pictures, beside a pool of two thousand endpoints, in 300 MiB."""
    write_endpoints(target, hostile_entries(target.model_server_port, 2000))
    await asyncio.sleep(1)

    def payload() -> bytes:
        links = ({"type": "image_url", "image_url": {"url": f"https://a/{target.rng.random()}"}} for _ in range(1000))
        return request(_chat(links), _CHAT)  # type: ignore[arg-type]

    await asyncio.gather(*(hold(target, [payload() for _ in range(30)], 2.0) for _ in range(10)))


async def rows_for_a_predictor(target: Target) -> None:
    """Six hundred requests that stay, of which a predictor is to be told about each of a thousand endpoints, in 300 MiB."""
    write_endpoints(target, hostile_entries(target.model_server_port, 1000))
    await asyncio.sleep(1)
    await asyncio.gather(*(hold(target, [request(_SHORT)] * 100, 3.0) for _ in range(6)))


async def requests_that_stay_at_their_endpoints(target: Target) -> None:
    """Sixteen thousand requests of as many fairness ids are under way at once, with objectives, while the page is read again and again."""

    def payloads() -> Iterable[bytes]:
        for number in range(1000):
            whose = {"x-llm-d-inference-fairness-id": f"{number}-{target.rng.random()}", "x-llm-d-slo-tpot-ms": "10"}
            yield request(_SHORT, whose)

    held = asyncio.gather(*(hold(target, payloads(), 3.0, reset=target.rng.random() < 0.5) for _ in range(16)))
    while not held.done():
        await page_of(target)
        await asyncio.sleep(0.3)
    await held


async def sessions_of_wide_characters(target: Target) -> None:
    """Sessions of 120 characters of four bytes, a new one with each request, are remembered by two plugins, and over at one moment."""

    def payloads() -> list[bytes]:
        return [request(_SHORT, {"x-session-id": f"{target.rng.random()}" + "\U0001f600" * 100}) for _ in range(500)]

    for _ in range(6):
        if target.seconds_left() > 1:
            await asyncio.gather(*(exchanged(target.ext_proc_port, payloads(), 2.0) for _ in range(4)))


async def cookies_without_measure(target: Target) -> None:
    """Cookies of 200 KB: semicolons, pairs of nothing, the same name, quotes, blanks; sessions that are base64 of all there is."""
    names = ("x-session-token", "x-session-id", "x-agent")
    for each in (";", "=;", "a=b;", "session;", "session=;", " ;", '"=";', "session =x;", "\x00=;"):
        cookie = each * (200_000 // len(each))
        more = {name: target.rng.choice(("AAAA", "====", "ZTA=", "\udcff", "e" * 9000)) for name in names}
        payloads = [request(_SHORT, {"cookie": cookie, **more})] * 6
        await exchanged(target.ext_proc_port, payloads)


async def models_in_pairs(target: Target) -> Iterable[str]:
    """Requests for models that change, each with another one that is asked for in its place; the page stays short."""
    for _ in range(3):
        payloads = [
            request(b'{"model":"%d","prompt":"p"}' % target.rng.randrange(900), {REWRITE: f"t{target.rng.randrange(900)}"}) + _ANSWER
            for _ in range(1500)
        ]
        await exchanged(target.ext_proc_port, payloads, 3.0)
    page = await page_of(target)
    lines = len({pair(line) for line in page.splitlines() if line.startswith("llm_d_epp_inference_request_metric{")})
    return [f"the page tells {lines} pairs of models apart, and has {len(page) >> 10} KiB"] if lines > 1001 else []


def pair(line: str) -> str:
    """The labels of a line that name models."""
    return line.partition(',type="')[0]


async def programs_without_number(target: Target) -> Iterable[str]:
    """Programs that change with each request, waiting and served, with names of 1000 characters; the page names no more than some."""

    def payloads() -> list[bytes]:
        ids = (f"{target.rng.random()}" + "p\u00e9" * 400 for _ in range(600))
        return [request(_SHORT, {"x-llm-d-inference-fairness-id": each}) + _ANSWER for each in ids]

    names: set[str] = set()
    for _ in range(4):
        await asyncio.gather(*(exchanged(target.ext_proc_port, payloads(), 2.0) for _ in range(2)))
        lines = [line for line in (await page_of(target)).splitlines() if line.startswith("llm_d_epp_program_aware_attained")]
        names.update(line.partition('program_id="')[2].partition('"')[0] for line in lines)
    found = [f"the page has named {len(names)} programs"] if len(names) > 1100 else []
    return [*found, *(["the page names programs by more than 128 characters"] if any(len(name) > 128 for name in names) else [])]


_SESSIONS = beside(
    "- {type: session-affinity-filter, parameters: {strategy: session_id, sessionIdConfig: {evictionTtlSeconds: 3}}}\n"
    "- {type: session-affinity-scorer, parameters: {strategy: session_id, sessionIdConfig: {evictionTtlSeconds: 300}}}\n",
    "  - pluginRef: session-affinity-filter\n  - pluginRef: session-affinity-scorer\n",
)
_TOKENS = beside(
    "- type: token-producer\n- type: inflight-load-producer\n- type: token-load-scorer\n", "  - pluginRef: token-load-scorer\n"
)
_MEDIA = beside("- type: mm-embeddings-cache-producer\n- type: mm-embeddings-cache-scorer\n", "  - pluginRef: mm-embeddings-cache-scorer\n")
_PREDICTING = beside(
    "- {type: predicted-latency-producer, parameters: {predictInProduce: false, streamingMode: true}}\n- type: latency-scorer\n",
    "  - pluginRef: latency-scorer\n",
)
_COOKIES = beside(
    "- {type: session-id-producer, parameters: {cookieName: session}}\n- {type: agent-identity}\n"
    "- {type: session-affinity-filter, parameters: {strategy: session_id, sessionIdConfig: {sources: [{attribute: session-id}]}}}\n"
    "- type: session-affinity-scorer\n",
    "  - pluginRef: session-affinity-filter\n  - pluginRef: session-affinity-scorer\n",
)
_PROGRAMS = (
    beside("- {type: concurrency-detector, parameters: {maxConcurrency: 40}}\n- type: program-aware-fairness\n").replace(
        "kind:", "featureGates: [flowControl]\nkind:", 1
    )
    + """\
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  defaultRequestTTL: 3s
  priorityBands: [{priority: 0, fairnessPolicyRef: program-aware-fairness, maxRequests: 5000}]
"""
)
ATTEMPTS = (
    # Of grpcio: "It has no turns in reading", and "others wait for a flood of streams, and may lose some".
    Attempt(films_that_last_for_years, flags=(EXPERIMENTS, _LITTLE), config=_TOKENS, may_lose=True, transports=("h2",)),
    # "A full search for garbage where memory is short holds the event loop for a moment."
    Attempt(a_thousand_pictures_each, flags=(EXPERIMENTS, _SOME), config=_MEDIA, may_lose=True, may_hold_seconds=0.2),
    Attempt(rows_for_a_predictor, flags=(EXPERIMENTS, _SOME), config=_PREDICTING, may_lose=True),
    Attempt(requests_that_stay_at_their_endpoints, flags=(EXPERIMENTS,), config=_PREDICTING, transports=("h2",)),
    Attempt(sessions_of_wide_characters, flags=(EXPERIMENTS,), config=_SESSIONS),
    Attempt(cookies_without_measure, flags=(EXPERIMENTS,), config=_COOKIES),
    Attempt(models_in_pairs, flags=(EXPERIMENTS,), config=_PREDICTING),
    Attempt(programs_without_number, flags=(EXPERIMENTS,), config=_PROGRAMS),
)
