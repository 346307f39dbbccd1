"""The inference request as plugins see it, and the checks of what plugins hand to the host."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import NoneType
from typing import Protocol, TypeAlias

Kinds = tuple[tuple[str, type | tuple[type, ...]], ...]
"""Field names, each with the types its value may have."""


_LONGEST_SHOWN = 100
_MOST_BITS = 256
_name_of: Callable[[type], str] = type.__dict__["__name__"].__get__


def shown(value: object) -> str:
    """What a message says of a value that is not what it has to be: itself where it is short, else its type.

    Only what Python itself shows is shown: a class of its own shows itself by code of the plugin, and lists within lists may be small and
    their text gigabytes.
    """
    kind = type(value)
    if isinstance(value, str | bytes) and (kind is str or kind is bytes):
        return repr(value[:_LONGEST_SHOWN])
    if kind is float or kind is bool or value is None or (kind is int and isinstance(value, int) and value.bit_length() <= _MOST_BITS):
        return repr(value)
    return repr(value) if kind is type else f"<{_name_of(kind)}>"


def check_fields(record: object, kinds: Kinds) -> None:
    """Raise TypeError when a field holds something else than its annotation says."""
    for name, kind in kinds:
        value: object = getattr(record, name)
        # The first question answers nearly always, and costs a third of the second.
        if type(value) is not kind and not isinstance(value, kind):
            raise TypeError(f"{name} of a {type(record).__name__} must be {_listed(kind)}, not {type(value).__name__}")


def check_strings(record: object, name: str, values: Iterable[object]) -> None:
    """Raise TypeError when something in a collection is no string."""
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"{name} of a {type(record).__name__} must hold strings only, not {type(value).__name__}")


_UNFIT_NAME = re.compile(r"[^0-9A-Za-z!#$%&'*+.^_`|~-]")
_UNFIT_VALUE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def check_headers(headers: Iterable[tuple[object, object]]) -> None:
    """Raise TypeError when a header's name or value is no string, ValueError when no gateway would take it."""
    for name, value in headers:
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"header {shown(name)} is set to {shown(value)}; names and values must be strings")
        if not name or _UNFIT_NAME.search(name, 1 if name[0] == ":" else 0) or _UNFIT_VALUE.search(value):
            raise ValueError(f"header {shown(name)} is set to {shown(value)}; no gateway would take that")


def _listed(kind: type | tuple[type, ...]) -> str:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return " or ".join("None" if each is type(None) else each.__name__ for each in kinds)


JSONValue: TypeAlias = "str | int | float | bool | Sequence[JSONValue] | Mapping[str, JSONValue] | None"
JSONObject: TypeAlias = Mapping[str, JSONValue]


_USAGE: Kinds = (("prompt_tokens", int), ("completion_tokens", int), ("cached_tokens", (int, NoneType)))


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts a model server reported for one response.

    Raises:
        TypeError: a count is not an integer; raised where the parser makes it.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache; None when not reported."""

    def __post_init__(self) -> None:
        check_fields(self, _USAGE)


class Modality(StrEnum):
    """What a part of a prompt is that is no text."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


@dataclass(frozen=True, slots=True)
class Media:
    """A picture, a film or a sound in a prompt.

    Attributes:
        modality: Which of them it is.
        content: Where it is (`https:` or `data:` URL), or the encoded content itself: equal content is equal media.
    """

    modality: Modality
    content: str


Piece: TypeAlias = "bytes | Media"
"""A part of a prompt: the UTF-8 bytes of a text, or media."""


MOST_MEDIA = 1024
"""Media of one request that plugins are shown: each costs them some ten microseconds, and a body may name a hundred thousand."""


def _with_few_media(prompts: tuple[tuple[Piece, ...], ...]) -> tuple[tuple[Piece, ...], ...]:
    if sum(map(len, prompts)) <= MOST_MEDIA:
        return prompts
    left, shown = MOST_MEDIA, list[tuple[Piece, ...]]()
    for prompt in prompts:
        pieces: list[Piece] = []
        for piece in prompt:
            left -= isinstance(piece, Media)
            pieces.append(piece.content.encode("utf-8", "surrogatepass") if left < 0 and isinstance(piece, Media) else piece)
        shown.append(tuple(pieces))
    return tuple(shown)


def _as_one_piece(texts: tuple[bytes, ...]) -> tuple[tuple[Piece, ...], ...]:
    return tuple((text,) for text in texts)


class Renders(Protocol):
    """The parser that has made a prompt, as the host knows it."""

    def rendering_failed(self, problem: BaseException | str) -> None:
        """Count a fault of the parser. May raise what refuses the request, where the operator wants that."""


_ONLY_BYTES = frozenset({bytes})


def _no_texts() -> tuple[bytes, ...]:
    raise TypeError("the texts of a prompt must be a tuple of bytes")


_PIECES = frozenset({bytes, Media})


def _checked_pieces(prompts: object) -> tuple[tuple[Piece, ...], ...]:
    """What was found, if it is what readers rely on. Raises TypeError for anything else."""
    if type(prompts) is not tuple or not all(type(prompt) is tuple and _PIECES.issuperset(map(type, prompt)) for prompt in prompts):
        raise TypeError("the pieces of a prompt must be a tuple of tuples of bytes and Media")
    return prompts


class Prompt:
    """What the model will read, as bytes; rendered when first asked for, because not every profile needs it.

    A conversation is one text; a batch of prompts is several.
    """

    __slots__ = ("_find_pieces", "_parser", "_pieces", "_render", "_texts")

    def __init__(
        self, render: Callable[[], tuple[bytes, ...]], find_pieces: Callable[[], tuple[tuple[Piece, ...], ...]] | None = None
    ) -> None:
        """Made by parsers.

        Args:
            render: Gives `texts`; called at most once.
            find_pieces: Gives `pieces`; called at most once. None for prompts that are text alone.
        """
        self._render = render
        self._find_pieces = find_pieces
        self._parser: Renders | None = None
        """Whose fault it is when rendering fails, in the midst of whichever plugin reads first; set by the host."""
        self._texts: tuple[bytes, ...] | None = None
        self._pieces: tuple[tuple[Piece, ...], ...] | None = None

    @property
    def texts(self) -> tuple[bytes, ...]:
        """UTF-8 bytes of each prompt, with bytes that name its media; empty when the request has none that can be read."""
        try:
            texts = self._texts
            if texts is None:
                rendered = self._render()
                # Without a call of its own, which each request would pay for.
                are_bytes = type(rendered) is tuple and _ONLY_BYTES.issuperset(map(type, rendered))
                texts = self._texts = rendered if are_bytes else _no_texts()
        except BaseException as problem:
            self._failed(problem)
            texts = self._texts = ()
        return texts

    @property
    def pieces(self) -> tuple[tuple[Piece, ...], ...]:
        """Each prompt as texts and media in turn, for those who count or hash media by themselves; media beyond the 1024th are texts."""
        try:
            pieces = self._pieces
            if pieces is None:
                find = self._find_pieces
                pieces = _as_one_piece(self.texts) if find is None else _with_few_media(_checked_pieces(find()))
                self._pieces = pieces
        except BaseException as problem:
            self._failed(problem)
            pieces = self._pieces = ()
        return pieces

    @property
    def media(self) -> tuple[Media, ...]:
        """The media of all prompts, in their order; empty for text alone."""
        if getattr(self, "_find_pieces", None) is None:
            return ()
        return tuple(piece for prompt in self.pieces for piece in prompt if isinstance(piece, Media))

    @property
    def estimated_tokens(self) -> int:
        """Four bytes per token, rounded up: the estimate used wherever no tokenizer is configured."""
        return sum((len(text) + 3) // 4 for text in self.texts)

    def _failed(self, problem: BaseException) -> None:
        """Blame the parser and go on with an empty prompt; where no host knows the parser, the reader gets what was raised."""
        parser = self._parser
        if parser is None:
            raise problem
        parser.rendering_failed(problem)


NO_PROMPT = Prompt(lambda: ())


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """One request on its way to a model server. Immutable, and the same object for every plugin.

    Attributes:
        id: `x-request-id`, generated when the client sent none.
        model: Model the server will be asked for, after rewriting; empty when unknown.
        incoming_model: Model the client asked for.
        path: Path without query string.
        headers: Lower-case names; the last value of a repeated header. Pseudo headers are not in it. Read-only.
        prompt: What the model will read.
        streaming: True when the client asked for a streamed response.
        max_output_tokens: The client's limit; None when it gave none.
        priority: Higher is more important; negative requests may be shed.
        fairness_id: Whose traffic this is.
        cache_salt: Requests with different salts never share a prefix cache.
        size_bytes: Length of the body as received.
        received_at: Monotonic seconds when the request headers arrived.
        payload: The JSON object of the body; None when the parser did not decode one, and for a large body, which another process has
            parsed for `endpick serve`. `prompt` and the other fields are there in any case. Read-only; what is within it is one object for
            all plugins. `dict(request.payload)` is what `json.dumps` takes.
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


_REJECTION: Kinds = (("message", str), ("status", int), ("reason", str))
_PARSED_REQUEST: Kinds = (
    ("model", str),
    ("prompt", Prompt),
    ("streaming", bool),
    ("max_output_tokens", (int, NoneType)),
    ("cache_salt", str),
)


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a request is not served.

    Attributes:
        message: For the client.
        status: HTTP status: 400, 401, 403, 404, 412, 429 or 503.
        reason: Short machine-readable word for the `x-llm-d-request-dropped-reason` header, e.g. `rejected-saturated`.

    Raises:
        TypeError, ValueError: a field is not what it has to be; raised where the plugin makes the rejection.
    """

    message: str
    status: int = 429
    reason: str = ""

    def __post_init__(self) -> None:
        check_fields(self, _REJECTION)
        if not 400 <= self.status <= 599:
            raise ValueError(f"status of a Rejection must be an HTTP error, 400 to 599, not {self.status}")
        if not (self.reason.isascii() and self.reason.isprintable()):
            raise ValueError(f"reason of a Rejection must be fit for a header, not {shown(self.reason)}")


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """What a parser read from a request body.

    Attributes:
        model: Empty when the body names none.
        prompt: Rendered lazily.
        streaming: The client asked for a streamed response.
        max_output_tokens: The client's limit, None when absent.
        cache_salt: Empty when absent.
        payload: The JSON object, None when the body was not decoded.
        needs_model: False for bodies that legitimately name no model.
        skip_response: The answer has nothing for the parser: no token counts, no model name to give back.

    Raises:
        TypeError: a field is not what it has to be; raised where the parser makes it. What `payload` holds is not looked at.
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
        check_fields(self, _PARSED_REQUEST)
