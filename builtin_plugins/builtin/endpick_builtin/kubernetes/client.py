"""Asks the API server: lists in pages, watches line by line, writes leases; whatever it answers instead is an `ApiError` that says so."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TypeAlias
from urllib.parse import urlencode, urlsplit

import aiohttp
import orjson

from endpick.api import Limit, Limits
from endpick.api.tls_channel import MOST_HANDSHAKE_BYTES
from endpick_builtin.collection.over_tls import LongHandshakeError, turns_of_tls
from endpick_builtin.kubernetes.access import Access, read_token
from endpick_builtin.kubernetes.http1 import ConnectorInTurns
from endpick_builtin.kubernetes.http2 import Destination, Exchange, NoHttp2Error, asked
from endpick_builtin.kubernetes.pages import MOST_BRACKETS, MOST_ITEM_BYTES, LongObjectError, Pace, PageError, take_apart
from endpick_builtin.kubernetes.patience import Patience
from endpick_builtin.kubernetes.watch_states import Outcome

JSONMapping: TypeAlias = dict[str, object]

PAGE_OBJECTS = 500
"""Of one page of a list: so many Pods are some MiB."""
MOST_PAGE_BYTES = 64 * 1024 * 1024
"""Unless `maxListBytes` says otherwise; of a page, and of any other answer but a watch."""
_OBJECT_OF_HANDSHAKE = 128
"""So many times as long as the handshake of TLS the longest object may be; of a handshake 24 KiB are always read."""
LINES_AT_ONCE = 50
"""Of a watch, before everything else has a turn."""
_LONG_PAGE = Limit(
    "maxListBytes",
    "an answer of the API server was refused: longer than maxListBytes; see what answers there, or raise maxListBytes",
)
_LONG_OBJECT = Limit(
    "maxObjectBytes",
    "a list or a watch was given up: an object is longer than maxObjectBytes; see what answers there, or raise maxObjectBytes",
)
_LONG_WATCH = Limit(
    "watchTimeout",
    "a watch was given up: the API server did not end it after watchTimeout, as it was asked to; see what stands between it and the picker",
)
_LONG_HANDSHAKE = Limit(
    "MOST_HANDSHAKE_BYTES",
    f"an API server was not asked: the handshake of its TLS is longer than {MOST_HANDSHAKE_BYTES // 2**10} KiB, and than one "
    f"{_OBJECT_OF_HANDSHAKE}th of maxObjectBytes (MOST_HANDSHAKE_BYTES); see which certificates it shows, or raise maxObjectBytes",
)
CLIENT_LIMITS = (_LONG_PAGE, _LONG_OBJECT, _LONG_WATCH, _LONG_HANDSHAKE)
"""For the `Limits` of who asks."""
_STATUS = re.compile("[1-9][0-9]{2}")


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
    """What a page says beside its objects: the version that they are of."""

    version: str
    rest: str
    """Where the next page begins; empty for the last."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a watch: `type` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: JSONMapping


@dataclass(frozen=True, slots=True)
class Answer:
    """Of the server, over either protocol; header fields are empty where they are missing."""

    status: int
    content_type: str
    retry_after: str
    chunks: AsyncIterator[bytes]


class ApiClient:
    """One API server, for as long as the picker runs. Use it between `open` and `close`."""

    def __init__(
        self,
        access: Access,
        patience: Patience,
        ping_seconds: float,
        limits: Limits,
        most_page_bytes: int = MOST_PAGE_BYTES,
        most_object_bytes: int = MOST_ITEM_BYTES,
    ) -> None:
        """For as long as the picker runs.

        Args:
            access: Where it is, and how it knows who asks.
            patience: The times that no parameter gives.
            ping_seconds: After so long without a word a watch over HTTP/2 asks whether its server is there.
            limits: `CLIENT_LIMITS` among them.
            most_page_bytes: Of one answer.
            most_object_bytes: Of one object, and of one event with what surrounds its object.
        """
        self._access = access
        self._most_page_bytes = most_page_bytes
        self._most_object_bytes = most_object_bytes
        self._most_handshake_bytes = max(MOST_HANDSHAKE_BYTES, most_object_bytes // _OBJECT_OF_HANDSHAKE)
        self._limits = limits
        self._patience = patience
        self._destination: Destination | None = None
        if access.http2_tls is not None:
            self._destination = Destination(
                urlsplit(access.server), access.http2_tls, patience.connect_seconds, ping_seconds, self._most_handshake_bytes
            )
        self._turns = turns_of_tls()
        self._pace = Pace()
        """Of all lists and watches."""
        self._token = access.token
        self._token_read_at = time.monotonic()
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Make ready to ask; nothing is sent yet."""
        # Without a limit: a watch keeps its connection, and a list must not wait for one.
        connector: aiohttp.BaseConnector = aiohttp.TCPConnector(limit=0)
        if self._access.tls is not None:
            connector = ConnectorInTurns(self._access.tls, self._turns, self._patience.connect_seconds, self._most_handshake_bytes)
        self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False)

    async def close(self) -> None:
        """Cut all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def page(self, path: str, query: Mapping[str, str], take: Callable[[JSONMapping], None], rest: str = "") -> Page:
        """A page of a list.

        Args:
            path: Of the collection.
            query: Selectors.
            take: Gets the objects as the server sent them, one at a time.
            rest: From the page before; empty for the first.

        Raises:
            ApiError: it cannot be had.
        """
        asked = {**query, "limit": str(PAGE_OBJECTS), **({"continue": rest} if rest else {})}
        try:
            async with asyncio.timeout(self._patience.page_seconds), self._answer(path, asked) as answer:
                raw = await self._limited(answer)
        except TimeoutError as problem:
            raise ApiError(f"no answer within {self._patience.page_seconds:g} s", Outcome.BROKEN) from problem
        try:
            around = await take_apart(raw, take, self._pace, self._most_object_bytes)
        except LongObjectError as problem:
            self._limits.acted(_LONG_OBJECT, about=path)
            raise ApiError(str(problem), Outcome.MALFORMED) from problem
        except PageError as problem:
            raise ApiError(f"the answer is no list of objects: {problem}", Outcome.MALFORMED) from problem
        metadata = around.get("metadata")
        if not isinstance(metadata, dict) or around.get("items"):
            raise ApiError("the answer is no list of objects", Outcome.MALFORMED)
        return Page(_text(metadata.get("resourceVersion")), _text(metadata.get("continue")))

    async def watch(self, path: str, query: Mapping[str, str], version: str, seconds: int, take: Callable[[list[Event]], None]) -> None:
        """Hand over events after a version as they come, all that arrived at once together, until the server ends the watch.

        Args:
            path: Of the collection.
            query: Selectors.
            version: Of the list, event or bookmark after which events are wanted.
            seconds: When the server is to end the watch; it is given up `grace_seconds` later.
            take: Gets the events.

        Raises:
            ApiError: the watch did not begin, or broke.
        """
        asked = {**query, "watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds), "resourceVersion": version}
        grace_seconds = self._patience.grace_seconds
        try:
            async with asyncio.timeout(seconds + grace_seconds):
                try:
                    await self._watch(path, asked, take)
                except NoHttp2Error:
                    self._destination = None
                    await self._watch(path, asked, take)
        except TimeoutError as problem:
            self._limits.acted(_LONG_WATCH, about=path)
            raise ApiError(f"the watch should have ended {grace_seconds:g} s ago", Outcome.SILENT) from problem

    async def _watch(self, path: str, asked: Mapping[str, str], take: Callable[[list[Event]], None]) -> None:
        async with self._answer(path, asked, over_http2=True) as answer:
            size, pieces = 0, list[bytes]()
            """Of a line that has not ended; joined once, because a long one may come in thousands."""
            async for chunk in answer.chunks:
                before, line_end, after = chunk.rpartition(b"\n")
                if line_end:
                    lines = b"".join((*pieces, before)).split(b"\n")
                    self._require_short(max(map(len, lines)), path)
                    await _hand_over(lines, take, self._pace)
                    pieces, size = [], 0
                pieces.append(after)
                size += len(after)
                self._require_short(size, path)
            if b"".join(pieces).strip():
                raise ApiError("the connection was cut in the middle of an event", Outcome.BROKEN)

    def _require_short(self, event_bytes: int, path: str) -> None:
        if event_bytes > self._most_object_bytes:
            self._limits.acted(_LONG_OBJECT, about=path)
            raise ApiError(f"an event is longer than {self._most_object_bytes} bytes", Outcome.MALFORMED)

    async def write(self, method: str, path: str, content: Mapping[str, object]) -> JSONMapping:
        """Create an object (POST to its collection) or replace it (PUT to itself); returns it as it is then.

        Raises:
            ApiError: it was not written, or that is unknown; its status is 409 where the object is another by now.
        """
        try:
            async with asyncio.timeout(self._patience.page_seconds), self._answer(path, {}, method, orjson.dumps(content)) as answer:
                return _object(await self._limited(answer))
        except TimeoutError as problem:
            raise ApiError(f"no answer within {self._patience.page_seconds:g} s", Outcome.BROKEN) from problem

    @asynccontextmanager
    async def _answer(
        self, path: str, query: Mapping[str, str], method: str = "GET", body: bytes | None = None, *, over_http2: bool = False
    ) -> AsyncIterator[Answer]:
        """The answer, whose status and type are good."""
        token = await self._current_token()
        # Packed answers are not asked for: what a short one unpacks to would hold the event loop.
        headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "endpick"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            if over_http2 and self._destination is not None:
                exchange = asked(self._destination, self._turns, self._pace, f"{path}?{urlencode(query)}", headers)
                answering = _over_http2(exchange)
            else:
                answering = self._over_http1(method, path, query, headers, body)
            async with answering as answer:
                if answer.status not in (200, 201):
                    raise await self._refusal(answer)
                if answer.content_type != "application/json":
                    raise ApiError(f"the answer is {answer.content_type}, not JSON; is this an API server?", Outcome.MALFORMED, 200)
                yield answer
        except (aiohttp.ClientError, OSError) as problem:
            if isinstance(problem, LongHandshakeError) or isinstance(problem.__cause__, LongHandshakeError):  # as aiohttp hands it on
                self._limits.acted(_LONG_HANDSHAKE, about=self._access.server)
            raise ApiError(_described(problem), Outcome.BROKEN) from problem

    @asynccontextmanager
    async def _over_http1(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes | None
    ) -> AsyncIterator[Answer]:
        assert self._session is not None, "the client is closed"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._patience.connect_seconds)
        url = self._access.server + path
        async with self._session.request(
            method, url, params=query, data=body, headers=headers, allow_redirects=False, timeout=timeout
        ) as response:
            retry_after = response.headers.get("Retry-After", "")
            packing = response.headers.get("Content-Encoding", "identity")
            kind = response.content_type if packing == "identity" else f"packed ({packing[:20]})"
            yield Answer(response.status, kind, retry_after, response.content.iter_any())

    async def _refusal(self, answer: Answer) -> ApiError:
        status = answer.status
        if status == 401:
            self._token_read_at = -self._patience.token_seconds
        outcome = {404: Outcome.ABSENT, 410: Outcome.EXPIRED}.get(status, Outcome.BROKEN)
        said = ""
        if answer.content_type == "application/json":
            try:
                said = _text(_object(await self._limited(answer)).get("message"))
            except ApiError:
                said = "a body that is not JSON"
        return ApiError(f"{status} {said or answer.content_type}"[:500], outcome, status, _retry_after(answer))

    async def _limited(self, answer: Answer) -> bytearray:
        """As it was gathered: a copy of the longest page would hold the event loop for 40 ms."""
        body = bytearray()
        async for chunk in answer.chunks:
            body += chunk
            if len(body) > self._most_page_bytes:
                self._limits.acted(_LONG_PAGE, about=self._access.server)
                raise ApiError(f"the answer is longer than {self._most_page_bytes} bytes", Outcome.MALFORMED)
        return body

    async def _current_token(self) -> str:
        """The token; one from a file is read again from time to time, and after an answer of 401."""
        path = self._access.token_file
        now = time.monotonic()
        if path is not None and now - self._token_read_at >= self._patience.token_seconds:
            self._token_read_at = now
            try:
                self._token = await asyncio.to_thread(read_token, path) or self._token
            except (OSError, UnicodeDecodeError) as problem:
                raise ApiError(f"the token {path} cannot be read: {problem}", Outcome.BROKEN) from problem
        return self._token


async def _hand_over(lines: list[bytes], take: Callable[[list[Event]], None], pace: Pace) -> None:
    """Some lines at a time, with turns for everything else between them: a server may send more than the event loop has time for."""
    for begin in range(0, len(lines), LINES_AT_ONCE):
        began = perf_counter()
        _take_some(lines[begin : begin + LINES_AT_ONCE], take)
        await pace.rest(began)


def _take_some(lines: list[bytes], take: Callable[[list[Event]], None]) -> None:
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
    if line.count(b"{") + line.count(b"[") > MOST_BRACKETS:
        raise ApiError(f"an event has more than {MOST_BRACKETS} brackets", Outcome.MALFORMED)
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


@asynccontextmanager
async def _over_http2(exchange: AbstractAsyncContextManager[Exchange]) -> AsyncIterator[Answer]:
    async with exchange as begun:
        headers = begun.headers
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        status = headers.get(":status", "")
        yield Answer(int(status) if _STATUS.fullmatch(status) else 0, content_type, headers.get("retry-after", ""), begun.chunks())


def _object(raw: bytes | bytearray) -> JSONMapping:
    try:
        content = orjson.loads(raw)
    except orjson.JSONDecodeError as problem:
        raise ApiError(f"the answer is not JSON: {problem}", Outcome.MALFORMED) from problem
    if not isinstance(content, dict):
        raise ApiError("the answer is no JSON object", Outcome.MALFORMED)
    return content


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _retry_after(answer: Answer) -> float:
    """Seconds; the form with a date, which API servers do not use, counts as nothing."""
    value = answer.retry_after
    return float(value) if value.isascii() and value.isdigit() and len(value) < 10 else 0.0


def _described(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__
