"""Asks the API server: lists in pages, watches line by line, writes leases; whatever it answers instead is an `ApiError` that says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

import aiohttp
import orjson

from endpick_builtin.kubernetes.access import Access
from endpick_builtin.kubernetes.watch_states import Outcome

JSONMapping: TypeAlias = dict[str, object]

PAGE_OBJECTS = 500
"""Of one page of a list: so many Pods are some MiB, which the event loop reads in some milliseconds."""
MOST_PAGE_BYTES = 64 * 1024 * 1024
MOST_LINE_BYTES = 16 * 1024 * 1024
"""One object and what surrounds it; etcd takes none beyond 1.5 MiB."""
CONNECT_SECONDS = 3.0
PAGE_SECONDS = 30.0
TOKEN_SECONDS = 60.0
"""How often a token file is read again; kubelets renew tokens long before they expire."""


class ApiError(Exception):
    """The server did not give what was asked for.

    Attributes:
        outcome: What that means for a watch.
        status: HTTP status, or the code of an error inside a watch; 0 where there was no answer.
        retry_after_seconds: What the server asked for; 0 where it did not.
    """

    def __init__(self, message: str, outcome: Outcome, status: int = 0, retry_after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.status = status
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True, slots=True)
class Page:
    """Objects as the server sent them, and the version that they are of."""

    items: list[JSONMapping]
    version: str
    rest: str
    """Where the next page begins; empty for the last."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a watch: `type` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: JSONMapping


class ApiClient:
    """One API server, for as long as the picker runs. Use it between `open` and `close`."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._token = access.token
        self._token_read_at = time.monotonic()
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Make ready to ask; nothing is sent yet."""
        # Without a limit: a watch keeps its connection, and a list must not wait for one.
        connector = aiohttp.TCPConnector(limit=0, ssl=self._access.tls or False)
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())

    async def close(self) -> None:
        """Cut all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def page(self, path: str, query: Mapping[str, str], rest: str = "") -> Page:
        """A page of a list.

        Args:
            path: Of the collection.
            query: Selectors.
            rest: From the page before; empty for the first.

        Raises:
            ApiError: it cannot be had.
        """
        asked = {**query, "limit": str(PAGE_OBJECTS), **({"continue": rest} if rest else {})}
        try:
            async with asyncio.timeout(PAGE_SECONDS), self._answer(path, asked) as response:
                raw = await _limited(response)
        except TimeoutError as problem:
            raise ApiError(f"no answer within {PAGE_SECONDS:g} s", Outcome.BROKEN) from problem
        content = _object(raw)
        metadata, items = content.get("metadata"), content.get("items") or []
        if not isinstance(metadata, dict) or not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise ApiError("the answer is no list of objects", Outcome.MALFORMED)
        return Page(items, _text(metadata.get("resourceVersion")), _text(metadata.get("continue")))

    async def watch(
        self, path: str, query: Mapping[str, str], version: str, seconds: int, grace_seconds: float, take: Callable[[list[Event]], None]
    ) -> None:
        """Hand over events after a version as they come, all that arrived at once together, until the server ends the watch.

        Args:
            path: Of the collection.
            query: Selectors.
            version: Of the list, event or bookmark after which events are wanted.
            seconds: When the server is to end the watch.
            grace_seconds: How long after that the watch is given up.
            take: Gets the events.

        Raises:
            ApiError: the watch did not begin, or broke.
        """
        asked = {**query, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds), "resourceVersion": version}
        try:
            async with asyncio.timeout(seconds + grace_seconds), self._answer(path, asked) as response:
                rest = b""
                async for chunk in response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    if len(rest) > MOST_LINE_BYTES:
                        raise ApiError(f"an event is longer than {MOST_LINE_BYTES} bytes", Outcome.MALFORMED)
                    _hand_over(lines, take)
                if rest.strip():
                    raise ApiError("the connection was cut in the middle of an event", Outcome.BROKEN)
        except TimeoutError as problem:
            raise ApiError(f"the watch should have ended {grace_seconds:g} s ago", Outcome.SILENT) from problem

    async def write(self, method: str, path: str, content: Mapping[str, object]) -> JSONMapping:
        """Create an object (POST to its collection) or replace it (PUT to itself); returns it as it is then.

        Raises:
            ApiError: it was not written, or that is unknown; its status is 409 where the object is another by now.
        """
        try:
            async with asyncio.timeout(PAGE_SECONDS), self._answer(path, {}, method, orjson.dumps(content)) as response:
                return _object(await _limited(response))
        except TimeoutError as problem:
            raise ApiError(f"no answer within {PAGE_SECONDS:g} s", Outcome.BROKEN) from problem

    @asynccontextmanager
    async def _answer(
        self, path: str, query: Mapping[str, str], method: str = "GET", body: bytes | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer, whose status and type are good."""
        assert self._session is not None, "the client is closed"
        token = await self._current_token()
        headers = {"Accept": "application/json", "User-Agent": "endpick", **({"Authorization": f"Bearer {token}"} if token else {})}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            async with self._session.request(
                method,
                self._access.server + path,
                params=query,
                data=body,
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            ) as response:
                if response.status not in (200, 201):
                    raise await self._refusal(response)
                if response.content_type != "application/json":
                    raise ApiError(f"the answer is {response.content_type}, not JSON; is this an API server?", Outcome.MALFORMED, 200)
                yield response
        except (aiohttp.ClientError, OSError) as problem:
            raise ApiError(_described(problem), Outcome.BROKEN) from problem

    async def _refusal(self, response: aiohttp.ClientResponse) -> ApiError:
        status = response.status
        if status == 401:
            self._token_read_at = -TOKEN_SECONDS
        outcome = {404: Outcome.ABSENT, 410: Outcome.EXPIRED}.get(status, Outcome.BROKEN)
        said = ""
        if response.content_type == "application/json":
            try:
                said = _text(_object(await _limited(response)).get("message"))
            except ApiError:
                said = "a body that is not JSON"
        return ApiError(f"{status} {said or response.content_type}"[:500], outcome, status, _retry_after(response))

    async def _current_token(self) -> str:
        """The token; one from a file is read again from time to time, and after an answer of 401."""
        path = self._access.token_file
        now = time.monotonic()
        if path is not None and now - self._token_read_at >= TOKEN_SECONDS:
            self._token_read_at = now
            try:
                self._token = (await asyncio.to_thread(path.read_text)).strip() or self._token
            except (OSError, UnicodeDecodeError) as problem:
                raise ApiError(f"the token {path} cannot be read: {problem}", Outcome.BROKEN) from problem
        return self._token


def _hand_over(lines: list[bytes], take: Callable[[list[Event]], None]) -> None:
    """What came before an error counts, too."""
    events: list[Event] = []
    try:
        events.extend(read_event(line) for line in lines if line.strip())
    finally:
        if events:
            take(events)


def read_event(line: bytes) -> Event:
    """One line of a watch.

    Raises:
        ApiError: it is none, or tells of an error.
    """
    content = _object(line)
    kind, told = content.get("type"), content.get("object")
    if not isinstance(kind, str) or not isinstance(told, dict):
        raise ApiError("a line of the watch is no event", Outcome.MALFORMED)
    if kind == "ERROR":
        code = told.get("code")
        status = code if isinstance(code, int) else 0
        message = f"{status} {_text(told.get('reason'))}: {_text(told.get('message'))}"[:500]
        raise ApiError(message, Outcome.EXPIRED if status == 410 else Outcome.BROKEN, status)
    return Event(kind, told)


async def _limited(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MOST_PAGE_BYTES:
            raise ApiError(f"the answer is longer than {MOST_PAGE_BYTES} bytes", Outcome.MALFORMED)
    return bytes(body)


def _object(raw: bytes) -> JSONMapping:
    try:
        content = orjson.loads(raw)
    except orjson.JSONDecodeError as problem:
        raise ApiError(f"the answer is not JSON: {problem}", Outcome.MALFORMED) from problem
    if not isinstance(content, dict):
        raise ApiError("the answer is no JSON object", Outcome.MALFORMED)
    return content


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _retry_after(response: aiohttp.ClientResponse) -> float:
    """Seconds; the form with a date, which API servers do not use, counts as nothing."""
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() and len(value) < 10 else 0.0


def _described(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__
