"""Answers of model servers, as a simulated picker sees them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from endpick.requests.model import CloseCause, Exchange

_STREAM: Final = {":status": "200", "content-type": "text/event-stream", "x-envoy-upstream-service-time": "1"}
_WHOLE: Final = {":status": "200", "content-type": "application/json", "x-envoy-upstream-service-time": "1"}
_FIRST: Final = b'data: {"choices":[{"text":"a","index":0}]}\n\n'


def begin_stream(exchange: Exchange, address: str) -> None:
    """Send the headers of a streamed answer and its first token to an exchange."""
    exchange.response_headers(_STREAM, address, "")
    exchange.response_chunk(_FIRST, False)


def finish(exchange: Exchange, address: str, streams: bool, tokens: tuple[int, int, int | None]) -> None:
    """Send the end of an answer; `tokens` are those of prompt and answer, and the cached ones if known."""
    prompt, completion, cached = tokens
    usage: dict[str, object] = {"prompt_tokens": prompt, "completion_tokens": completion}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    body = orjson.dumps({"choices": [], "usage": usage})
    if streams:
        exchange.response_chunk(b"data: " + body + b"\n\ndata: [DONE]\n\n", True)
    else:
        exchange.response_headers(_WHOLE, address, "")
        exchange.response_chunk(body, True)
    _end(exchange)


def fail(exchange: Exchange, headers: Mapping[str, str], address: str, gateway_error: str) -> None:
    """Send an error instead of an answer to an exchange."""
    exchange.response_headers(headers, address, gateway_error)
    exchange.response_chunk(b"{}", True)
    _end(exchange)


def _end(exchange: Exchange) -> None:
    if exchange.adds_metadata:
        exchange.response_metadata()
    exchange.finish(CloseCause.END)
