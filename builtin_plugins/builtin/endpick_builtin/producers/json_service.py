"""A service beside the picker that answers JSON with JSON: a renderer of prompts, a predictor of latencies."""

from __future__ import annotations

import ssl
from urllib.parse import urlsplit

import orjson

from endpick.api import Limits, Unavailable
from endpick_builtin.collection.http_pages import HttpPages
from endpick_builtin.collection.json_answers import refuse_too_many_parts
from endpick_builtin.collection.page_limits import SERVICE_SIZE, PageSize


def problem_with_url(url: str) -> str | None:
    """Why a service cannot be at this URL; None when it can. Its text is not repeated: a password or a key may be in it."""
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


class JsonService:
    """Keeps connections to one service."""

    def __init__(self, url: str, limits: Limits, longest: PageSize = SERVICE_SIZE) -> None:
        """For as long as the one who asks runs.

        Args:
            url: One with which `problem_with_url` finds no fault; paths are appended to it.
            limits: `PAGE_LIMITS` among them.
            longest: How long answers may be, as `service_size` makes it.
        """
        self._limits, self._longest = limits, longest
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        self.url = url.rstrip("/")
        self._authority = f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
        self._path = parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._pages: HttpPages | None = None

    def open(self) -> None:
        """Begin; within the event loop."""
        self._pages = HttpPages(self._tls, "application/json", self._limits, self._longest)

    async def close(self) -> None:
        """Close all connections."""
        pages, self._pages = self._pages, None
        if pages is not None:
            await pages.close()

    @property
    def is_open(self) -> bool:
        """Whether it can be asked."""
        return self._pages is not None

    async def ask(self, path: str, question: object, headers: str = "") -> object:
        """The answer as parsed JSON; None for an empty one.

        Args:
            path: From the service's URL.
            question: What orjson can write.
            headers: As those of `HttpPages.post`.

        Raises:
            Unavailable: there is none; the message names the URL and the reason.
        """
        if self._pages is None:
            raise Unavailable(f"{self.url}{path} is not asked before `start` and after `stop`")
        try:
            body = orjson.dumps(question)
        except TypeError as problem:
            raise Unavailable(f"POST {self.url}{path}: the question cannot be written as JSON: {problem}") from problem
        answer = await self._pages.post(self._authority, f"{self._path}{path}", body, headers)
        refuse_too_many_parts(answer, self._limits, f"{self.url}{path}", self._longest)
        try:
            return orjson.loads(answer) if answer else None
        except orjson.JSONDecodeError as problem:
            raise Unavailable(f"POST {self.url}{path}: the answer is no JSON: {problem}") from problem
