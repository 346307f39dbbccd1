"""Asks model servers for the addresses of their KV-event publishers: `GET /kv_event_sources`, which vLLM answers since 2026."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

import aiohttp
import msgspec

from endpick.api import Endpoint
from endpick_builtin.producers.json_service import read_limited

PATH = "/kv_event_sources"
TRIES = 12
PAUSE_SECONDS = 5.0
_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
_MAX_ANSWER_BYTES = 1024 * 1024
_WILDCARD = re.compile(r"^(tcp://)(\*|0\.0\.0\.0|\[::\])(:\d+)$")


@dataclass(frozen=True, slots=True)
class EventSource:
    """ZeroMQ addresses of one publisher; `replay` may be empty."""

    events: str
    replay: str = ""


class _Rank(msgspec.Struct):
    endpoint: str
    replay_endpoint: str | None = None


_DECODER = msgspec.json.Decoder(dict[str, _Rank])


async def find_source(session: aiohttp.ClientSession, endpoint: Endpoint, rank: int) -> EventSource | None:
    """Addresses of a rank's publisher; None if the server does not answer within a minute."""
    for attempt in range(TRIES):
        if attempt:
            await asyncio.sleep(PAUSE_SECONDS)
        try:
            async with session.get(f"http://{endpoint.address}{PATH}", timeout=_TIMEOUT) as response:
                if response.status == 404:
                    return None
                if response.status == 200:
                    return source_of(await read_limited(response, _MAX_ANSWER_BYTES), endpoint, rank)
        except (aiohttp.ClientError, OSError, ValueError):
            continue
    return None


def source_of(answer: bytes, endpoint: Endpoint, rank: int) -> EventSource | None:
    """One rank's entry in a server's answer; a single entry counts for any rank."""
    try:
        ranks = _DECODER.decode(answer)
    except msgspec.DecodeError:
        return None
    found = next(iter(ranks.values())) if len(ranks) == 1 else ranks.get(str(rank))
    if found is None or not found.endpoint.startswith("tcp://"):
        return None
    replay = found.replay_endpoint or ""
    return EventSource(_reachable(endpoint, found.endpoint), _reachable(endpoint, replay) if replay.startswith("tcp://") else "")


def _reachable(endpoint: Endpoint, address: str) -> str:
    return _WILDCARD.sub(lambda found: f"{found[1]}{bracketed(endpoint.host)}{found[3]}", address)


def bracketed(host: str) -> str:
    """The host as it stands in a URL."""
    return f"[{host}]" if ":" in host else host
