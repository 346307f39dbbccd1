"""The inference request as plugins see it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import NoneType
from typing import TypeAlias

_UNFIT_NAME = re.compile(r"[^0-9A-Za-z!#$%&'*+.^_`|~-]")
_UNFIT_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def shown(value: object) -> str:
    """A wrong value, shortened for messages."""
    text = repr(value[:100]) if isinstance(value, str | bytes) else repr(value)
    return text if len(text) <= 410 else f"<{type(value).__name__}>"


Fields = tuple[tuple[str, type | tuple[type, ...]], ...]  # names and types


def check_types(record: object, fields: Fields) -> None:
    """Raise TypeError for a field of another type."""
    for name, kind in fields:
        if not isinstance(getattr(record, name), kind):
            kinds = " or ".join("None" if each is NoneType else each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
            raise TypeError(f"{name} of a {type(record).__name__} must be {kinds}, not {type(getattr(record, name)).__name__}")


def check_headers(headers: Iterable[tuple[object, object]]) -> None:
    """Raise TypeError for headers that are no strings, ValueError if HTTP does not allow them."""
    for name, value in headers:
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"header {shown(name)} is set to {shown(value)}; names and values must be strings")
        if not name or _UNFIT_NAME.search(name, 1 if name[0] == ":" else 0) or _UNFIT_VALUE.search(value):
            raise ValueError(f"header {shown(name)} is set to {shown(value)}; no gateway would take that")


JSONValue: TypeAlias = "str | int | float | bool | Sequence[JSONValue] | Mapping[str, JSONValue] | None"
"""A value of a JSON document as plain Python data."""
JSONObject: TypeAlias = Mapping[str, JSONValue]
"""A JSON object as a mapping from names to JSON values."""


_USAGE: Fields = (("prompt_tokens", int), ("completion_tokens", int), ("cached_tokens", (int, NoneType)))


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one response, returned by `Parser.usage`.

    Attributes:
        prompt_tokens: Tokens of the prompt; 0 if not reported.
        completion_tokens: Tokens of the answer; 0 if not reported.
        cached_tokens: Prompt tokens read from the prefix cache; None if not reported.

    Raises:
        TypeError: A count is not an integer.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None

    def __post_init__(self) -> None:
        check_types(self, _USAGE)


class Modality(StrEnum):
    """The type of a media item in a prompt."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


@dataclass(frozen=True, slots=True)
class Media:
    """An image, video or sound in a prompt.

    Attributes:
        modality: The type of the item.
        content: An `https:` or `data:` URL, or the encoded content. Equal content is equal media.
    """

    modality: Modality
    content: str


Piece: TypeAlias = "bytes | Media"
"""A part of a prompt: UTF-8 text, or media."""

MOST_MEDIA = 1024
"""Media items per request; further ones appear as text."""


def _limited(prompts: tuple[tuple[Piece, ...], ...]) -> tuple[tuple[Piece, ...], ...]:
    if sum(map(len, prompts)) <= MOST_MEDIA:
        return prompts
    seen, limited = 0, list[tuple[Piece, ...]]()
    for prompt in prompts:
        pieces: list[Piece] = []
        for piece in prompt:
            seen += isinstance(piece, Media)
            too_many = seen > MOST_MEDIA and isinstance(piece, Media)
            pieces.append(piece.content.encode("utf-8", "surrogatepass") if too_many and isinstance(piece, Media) else piece)
        limited.append(tuple(pieces))
    return tuple(limited)


class Prompt:
    """The prompts of a request, rendered on first use by the parser's functions.

    A conversation is one text; a batch is several.
    """

    __slots__ = ("_find_pieces", "_pieces", "_render", "_texts")

    def __init__(
        self, render: Callable[[], tuple[bytes, ...]], find_pieces: Callable[[], tuple[tuple[Piece, ...], ...]] | None = None
    ) -> None:
        """Keep the functions that render the prompt; parsers call it.

        `render` returns `texts`, `find_pieces` returns `pieces`; each is called at most once. `find_pieces` is None without media.
        """
        self._render = render
        self._find_pieces = find_pieces
        self._texts: tuple[bytes, ...] | None = None
        self._pieces: tuple[tuple[Piece, ...], ...] | None = None

    @property
    def texts(self) -> tuple[bytes, ...]:
        """The UTF-8 bytes of each prompt, including bytes that identify its media.

        Empty if the body is unreadable or has no prompt.
        """
        if self._texts is None:
            self._texts = self._render()
        return self._texts

    @property
    def pieces(self) -> tuple[tuple[Piece, ...], ...]:
        """Each prompt as a sequence of texts and media.

        Beyond 1024 media items per request, further ones appear as text.
        """
        if self._pieces is None:
            find = self._find_pieces
            self._pieces = tuple((text,) for text in self.texts) if find is None else _limited(find())
        return self._pieces

    @property
    def media(self) -> tuple[Media, ...]:
        """The media of all prompts, in order; empty without media."""
        if self._find_pieces is None:
            return ()
        return tuple(piece for prompt in self.pieces for piece in prompt if isinstance(piece, Media))

    @property
    def estimated_tokens(self) -> int:
        """The estimated number of tokens of all prompts, used without a tokenizer.

        Four bytes of text make a token, rounded up for each prompt.
        """
        return sum((len(text) + 3) // 4 for text in self.texts)


NO_PROMPT = Prompt(lambda: ())


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """One request, immutable; every plugin gets the same object.

    Attributes:
        id: `x-request-id`, generated if the client sent none.
        model: For the model server, after rewriting; empty if unknown.
        incoming_model: As the client requested; empty if unknown.
        path: Without query string.
        headers: Lower-case names without pseudo headers; the last value of a repeated header.
        prompt: The prompts; without texts if no parser read them.
        streaming: True if the client requests a stream of events.
        max_output_tokens: The client's limit, or None.
        priority: Higher is more important; negative requests may be shed.
        fairness_id: The tenant, for flow control and metrics.
        cache_salt: Requests with different salts never share a prefix cache.
        size_bytes: Of the body as received.
        received_at: Seconds of `PluginContext.clock` when the headers arrived.
        payload: The JSON object of the body, read-only; else None.
        method: Of HTTP, in upper case.
    """

    id: str
    model: str = ""
    incoming_model: str = ""
    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    prompt: Prompt = NO_PROMPT
    streaming: bool = False
    max_output_tokens: int | None = None
    priority: int = 0
    fairness_id: str = "default-flow"
    cache_salt: str = ""
    size_bytes: int = 0
    received_at: float = 0.0
    payload: JSONObject | None = field(default=None, repr=False)
    method: str = "POST"


_REJECTION: Fields = (("message", str), ("status", int), ("reason", str))


@dataclass(frozen=True, slots=True)
class Rejection:
    """The answer of a plugin that refuses a request.

    The host sends it to the client, and counts the request as refused.

    Attributes:
        message: For the client.
        status: HTTP status, 400 to 599.
        reason: For the `x-llm-d-request-dropped-reason` header, e.g. `rejected-saturated`.

    Raises:
        TypeError: A field has the wrong type.
        ValueError: The status is no HTTP error, or the reason does not fit a header.
    """

    message: str
    status: int = 429
    reason: str = ""

    def __post_init__(self) -> None:
        check_types(self, _REJECTION)
        if not 400 <= self.status <= 599:
            raise ValueError(f"status of a Rejection must be an HTTP error, 400 to 599, not {self.status}")
        if not (self.reason.isascii() and self.reason.isprintable()):
            raise ValueError(f"reason of a Rejection must be fit for a header, not {shown(self.reason)}")


MAX_RESPONSE_BYTES = 1024 * 1024
"""Longest body of a `DirectResponse`."""
_DIRECT_RESPONSE: Fields = (("status", int), ("body", bytes), ("headers", Mapping))


@dataclass(frozen=True, slots=True)
class DirectResponse:
    """The answer of a plugin to the client, without a model server.

    `Responder.respond` and `PreRequest.before_request` return it.

    Attributes:
        status: HTTP status, 200 to 599.
        body: At most 1 MiB.
        headers: Response headers; set `content-type` here.

    Raises:
        TypeError: A field has the wrong type.
        ValueError: The status is no final one, the body is too long, or HTTP does not allow a header.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_types(self, _DIRECT_RESPONSE)
        check_headers(self.headers.items())
        if not 200 <= self.status <= 599:
            raise ValueError(f"status of a DirectResponse must be a final one, 200 to 599, not {self.status}")
        if len(self.body) > MAX_RESPONSE_BYTES:
            raise ValueError(f"body of a DirectResponse may have {MAX_RESPONSE_BYTES} bytes, not {len(self.body)}")


_PARSED_REQUEST: Fields = (
    ("model", str),
    ("prompt", Prompt),
    ("streaming", bool),
    ("max_output_tokens", (int, NoneType)),
    ("cache_salt", str),
)


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """The request that a parser read from a body.

    Attributes:
        model: Empty if the body names none.
        prompt: The prompts, rendered on first use.
        streaming: True if the client requests a stream of events.
        max_output_tokens: The client's limit, or None.
        cache_salt: Requests with different salts never share a prefix cache.
        payload: The JSON object; None if the body is not JSON.
        needs_model: False for bodies that legitimately name no model. Others without a model are refused with status 400.
        skip_response: The response has no token counts and no model name to restore.

    Raises:
        TypeError: A field has the wrong type.
    """

    model: str = ""
    prompt: Prompt = NO_PROMPT
    streaming: bool = False
    max_output_tokens: int | None = None
    cache_salt: str = ""
    payload: JSONObject | None = field(default=None, repr=False)
    needs_model: bool = True
    skip_response: bool = False

    def __post_init__(self) -> None:
        check_types(self, _PARSED_REQUEST)
