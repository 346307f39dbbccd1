"""Asks model servers where they publish their KV events: `GET /kv_event_sources`, which vLLM answers since 2026."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TypeGuard

import orjson

from endpick.api import Endpoint, Limits, Unavailable
from endpick_builtin.collection.http_pages import HttpPages
from endpick_builtin.collection.json_answers import refuse_too_many_parts
from endpick_builtin.collection.page_limits import SERVICE_SIZE, PageSize

PATH = "/kv_event_sources"
TRIES = 12
PAUSE_SECONDS = 5.0
ANSWER_SECONDS = 2.0
_ANY_HOST = re.compile(r"^(tcp://)(\*|0\.0\.0\.0|\[::\])(:\d+)$")


@dataclass(frozen=True, slots=True)
class EventSource:
    """Addresses of one rank's publisher."""

    events: str
    replay: str = ""
    """Where past messages can be had; empty: nowhere."""


class EventSources:
    """Asks servers, one by one."""

    def __init__(self, limits: Limits, longest: PageSize = SERVICE_SIZE) -> None:
        """`limits` hold `PAGE_LIMITS`; `longest`: of answers."""
        self._limits, self._longest = limits, longest
        self._pages = HttpPages(None, "application/json", limits, longest)

    async def close(self) -> None:
        """Ask no more."""
        await self._pages.close()

    async def find(self, endpoint: Endpoint, rank: int) -> EventSource | None:
        """Where this rank of the server publishes; None when the server does not say, or has not answered for a minute."""
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(PAUSE_SECONDS)
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    answer = await self._pages.get(endpoint.address, PATH)
                    refuse_too_many_parts(answer, self._limits, endpoint.name, self._longest)
            except Unavailable as problem:
                if "answered 404" in str(problem):
                    return None
            except TimeoutError:
                continue
            else:
                return source_of(answer, endpoint, rank)
        return None


def source_of(answer: bytes, endpoint: Endpoint, rank: int) -> EventSource | None:
    """The entry of one rank in a server's answer; None where there is none that can be read.

    vLLM answers an object, the settings of each rank's publisher by its number; a server that runs one rank of several knows only that.
    """
    try:
        ranks = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(ranks, dict):
        return None
    one = next(iter(ranks.values())) if len(ranks) == 1 else ranks.get(str(rank))
    if not isinstance(one, dict) or not _is_address(one.get("endpoint")):
        return None
    replay = one.get("replay_endpoint")
    return EventSource(_at(endpoint, one["endpoint"]), _at(endpoint, replay) if _is_address(replay) else "")


def _is_address(value: object) -> TypeGuard[str]:
    """Of another machine: sockets of this one, which ZeroMQ could dial as well, are no server's business."""
    return isinstance(value, str) and value.startswith("tcp://")


def _at(endpoint: Endpoint, address: str) -> str:
    """A server that listens on all its addresses is dialled at the endpoint's."""
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return _ANY_HOST.sub(lambda found: f"{found[1]}{host}{found[3]}", address)
