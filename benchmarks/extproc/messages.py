"""Pre-built conversations: what a gateway sends on one stream, as gRPC messages."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import orjson

from endpick._proto.ext_proc_pb2 import ProcessingMode, ProcessingRequest

_PIECE_BYTES = 32 * 1024
"""How a gateway cuts a large body, roughly."""
_REQUEST_HEADERS = {
    ":authority": "models.example",
    ":path": "/v1/chat/completions",
    ":method": "POST",
    ":scheme": "http",
    "user-agent": "bench/1",
    "accept": "*/*",
    "content-type": "application/json",
    "x-forwarded-proto": "http",
    "x-request-id": "6f4dc3a2-5a55-4d0c-9e9c-8a2f6c1d1a11",
}
_RESPONSE_HEADERS = {":status": "200", "content-type": "application/json", "server": "uvicorn"}
EVENT = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" token"}}]}\n\n'
_USAGE = {"prompt_tokens": 200, "completion_tokens": 80, "total_tokens": 280}
LAST_EVENTS = b"data: " + orjson.dumps({"id": "c", "choices": [], "usage": _USAGE}) + b"\n\ndata: [DONE]\n\n"
ANSWER = orjson.dumps({"id": "c", "model": "llama", "choices": [{"message": {"content": "word " * 100}}], "usage": _USAGE})


@dataclass(frozen=True)
class Conversation:
    """One HTTP request as the gateway tells of it."""

    name: str
    messages: tuple[bytes, ...]
    chunks: int = 0
    """Pieces of the response beyond the first."""

    @property
    def wire(self) -> bytes:
        """All messages, each with its gRPC head."""
        return b"".join(struct.pack(">BI", 0, len(message)) + message for message in self.messages)


def conversations() -> tuple[Conversation, ...]:
    """The ones that are measured, smallest first; the SSE one follows the 1 KB one, which it is compared with."""
    return (
        _plain("1 KB", 1024),
        _streaming("1 KB + 80 chunks", 1024, 80),
        _plain("16 KB", 16 * 1024),
        _plain("220 KB", 220 * 1024),
    )


def chat(size: int, *, stream: bool = False, about: str = "the sea") -> bytes:
    """A chat completion request of about `size` bytes; what it is about stands in its second half."""
    empty = {"model": "llama", "max_tokens": 100, "stream": stream, "messages": [{"role": "user", "content": ""}]}
    room = size - len(orjson.dumps(empty))
    shared, own = (f"Tell me about {what}, and about the ships on it. " * (size // 50 + 1) for what in ("the sea", about))
    empty["messages"] = [{"role": "user", "content": shared[: room // 2] + own[: room - room // 2]}]
    return orjson.dumps(empty)


def variants(size: int, chunks: int, count: int, first: int = 0) -> tuple[tuple[bytes, ...], ...]:
    """The messages of `count` conversations whose prompts begin alike, numbered from `first`; with `chunks`, the answers are streamed."""
    answer = _streamed(chunks) if chunks else answered()
    return tuple((*request(chat(size, stream=bool(chunks), about=f"sea {number}")), *answer) for number in range(first, first + count))


def _plain(name: str, size: int) -> Conversation:
    return Conversation(name, (*request(chat(size)), *answered()))


def _streaming(name: str, size: int, chunks: int) -> Conversation:
    return Conversation(name, (*request(chat(size)), *_streamed(chunks)), chunks)


def answered() -> tuple[bytes, ...]:
    """The messages of a response in one piece."""
    return _headers("response_headers", _RESPONSE_HEADERS), *_body("response_body", ANSWER)


def _streamed(chunks: int) -> tuple[bytes, ...]:
    headers = _headers("response_headers", {**_RESPONSE_HEADERS, "content-type": "text/event-stream"})
    pieces = [_piece("response_body", EVENT, end=False) for _ in range(chunks - 1)]
    return headers, *pieces, *_body("response_body", LAST_EVENTS)


def request(body: bytes, headers: Mapping[str, str] = MappingProxyType({})) -> tuple[bytes, ...]:
    """The messages of a request with these headers beside the usual ones."""
    first = ProcessingRequest.FromString(_headers("request_headers", {**_REQUEST_HEADERS, **headers}))
    first.protocol_config.request_body_mode = ProcessingMode.FULL_DUPLEX_STREAMED
    first.protocol_config.response_body_mode = ProcessingMode.FULL_DUPLEX_STREAMED
    return first.SerializeToString(), *_body("request_body", body)


def _headers(kind: str, headers: Mapping[str, str]) -> bytes:
    message = ProcessingRequest()
    for name, value in headers.items():
        getattr(message, kind).headers.headers.add(key=name, raw_value=value.encode())
    return message.SerializeToString()


def _body(kind: str, body: bytes) -> tuple[bytes, ...]:
    """Pieces, and the empty one that Envoy ends a body with."""
    pieces = [_piece(kind, body[at : at + _PIECE_BYTES], end=False) for at in range(0, len(body), _PIECE_BYTES)]
    return *pieces, _piece(kind, b"", end=True)


def _piece(kind: str, body: bytes, *, end: bool) -> bytes:
    message = ProcessingRequest()
    getattr(message, kind).body = body
    getattr(message, kind).end_of_stream = end
    return message.SerializeToString()
