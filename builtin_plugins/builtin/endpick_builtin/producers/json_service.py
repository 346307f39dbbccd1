"""Client of a JSON-over-HTTP service."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import urlsplit

import aiohttp
import orjson

from endpick.api import Unavailable

MAX_ANSWER_BYTES = 8 * 1024 * 1024  # half a million tokens


def problem_with_url(url: str) -> str | None:
    """Return why the URL is unusable, or None; the reason never repeats it, as it may hold a password."""
    try:
        parts = urlsplit(url)
        _ = parts.port
        usable = parts.scheme in ("http", "https") and parts.hostname
    except ValueError:
        usable = False
    if not usable:
        return "it is no URL of a service; write for example http://localhost:8000"
    if "@" in parts.netloc:
        return "its URL names a user, whom no request would name; leave that out"
    if parts.query or parts.fragment:
        return "its URL has a query or a fragment; paths are appended to it, so leave them out"
    return None


async def read_limited(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Read a body; raises ValueError if it is longer than `limit` bytes."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > limit:
            raise ValueError(f"the answer is longer than {limit} bytes")
    return bytes(body)


class JsonService:
    """Client of one service; call `open` and `close` within the event loop."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None))

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @property
    def is_open(self) -> bool:
        return self._session is not None

    async def post(self, path: str, question: object, timeout_seconds: float, headers: Mapping[str, str] | None = None) -> object:
        """POST JSON, and return the parsed answer, None if empty; raises Unavailable without a 2xx JSON answer in time."""
        url = f"{self.url}{path}"
        if self._session is None:
            raise Unavailable(f"{url} is not asked before `start` and after `stop`")
        content = {"content-type": "application/json", "accept": "application/json", **(headers or {})}
        try:
            body = orjson.dumps(question)
            async with (
                asyncio.timeout(timeout_seconds),
                self._session.post(url, data=body, allow_redirects=False, headers=content) as response,
            ):
                if not 200 <= response.status < 300:
                    raise Unavailable(f"POST {url} answered {response.status}")
                answer = await read_limited(response, MAX_ANSWER_BYTES)
            return orjson.loads(answer) if answer else None
        except TimeoutError as problem:
            raise Unavailable(f"POST {url}: no answer within {timeout_seconds:g} s") from problem
        except orjson.JSONDecodeError as problem:
            raise Unavailable(f"POST {url}: the answer is no JSON: {problem}") from problem
        except (aiohttp.ClientError, OSError, TypeError, ValueError) as problem:
            raise Unavailable(f"POST {url}: {problem}") from problem
