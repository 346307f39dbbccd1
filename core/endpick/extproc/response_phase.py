"""The response half of a stream."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from endpick._proto.ext_proc_pb2 import HeaderMutation
from endpick.extproc import replies
from endpick.extproc.messages import ONE_MESSAGE_MODES, as_struct, mutation
from endpick.extproc.replies import Direction
from endpick.extproc.stream import (
    GrpcStatus,
    MessagePart,
    MessageState,
    PassingBody,
    ProtocolError,
    SessionCounters,
    SetPassThrough,
    next_state,
    out_of_order,
)
from endpick.requests.model import BodyMode, CloseCause, Exchange

logger = logging.getLogger(__name__)

# Globals: an enum lookup is several times slower.
_BODY: Final = MessageState.BODY
_DONE: Final = MessageState.DONE
_HEADERS: Final = MessagePart.HEADERS
_LAST_HEADERS: Final = MessagePart.LAST_HEADERS
_BODY_PART: Final = MessagePart.BODY
_LAST_BODY: Final = MessagePart.LAST_BODY
_TRAILERS: Final = MessagePart.TRAILERS
_TO_CLIENT: Final = Direction.RESPONSE
_NONE: Final = BodyMode.NONE
_FULL_DUPLEX: Final = BodyMode.FULL_DUPLEX_STREAMED


class ResponsePhase(PassingBody):
    """Passes a response to its exchange chunk by chunk; without an exchange it stays unchanged."""

    __slots__ = (
        "_active",
        "_counters",
        "_has_length",
        "_mode",
        "_observe_chunk",
        "_passes_through",
        "_replaced",
        "_rewrites",
        "_set_pass_through",
        "exchange",
        "state",
        "streams",
    )

    def __init__(self, mode: BodyMode, counters: SessionCounters, set_pass_through: SetPassThrough | None) -> None:
        self._mode = mode
        self._counters = counters
        self._set_pass_through = set_pass_through
        self.exchange: Exchange | None = None
        self._active: Exchange | None = None  # None once it has raised
        self._observe_chunk: Callable[[bytes, bool], bytes | None] | None = None  # `Exchange.response_chunk`, if wanted
        self._rewrites = False
        self._replaced = False
        self._has_length = False
        self._passes_through = False
        self.state = MessageState.IDLE
        self.streams = False  # chunks may go to `on_streamed`

    def on_headers(self, headers: dict[str, str], end: bool, served: str | None, gateway_error: str | None = None) -> list[bytes]:
        """Handle the response headers; returns replies. Raises ProtocolError."""
        self.state = next_state("response", self.state, _LAST_HEADERS if end else _HEADERS)
        exchange = self._active = self.exchange
        answer = replies.CONTINUE_RESPONSE_HEADERS
        if exchange is not None:
            self._has_length = "content-length" in headers
            try:
                added = exchange.response_headers(headers, served, gateway_error)
                if exchange.wants_chunks:
                    self._observe_chunk = exchange.response_chunk
                self._rewrites = exchange.rewrites
                if added:
                    answer = replies.response_headers(tuple(added.items()))
            except Exception as error:
                self._fault("response_headers", error)
        if end:
            if self._rewrites:
                self._replacement_for(b"", end=True)
            return [self._end_with(answer)]
        if self._mode is _FULL_DUPLEX:
            self.streams = True
            if self._set_pass_through is not None and (self._observe_chunk is None or not self._rewrites):
                self._passes_through = True
                self._set_pass_through(self)
        return [answer]

    def on_streamed(self, chunk: bytes, head: bytes) -> Sequence[bytes]:
        """Handle a chunk; `head + chunk` is the reply that leaves it unchanged. Raises ProtocolError."""
        replacement = None
        if self._observe_chunk is not None:
            try:
                replacement = self._observe_chunk(chunk, False)
            except Exception as error:
                self._chunk_fault(error)
        if replacement is None:
            return (head + chunk,)
        self._replaced = True
        return replies.streamed(_TO_CLIENT, replacement, end=False)

    def let_pass(self, piece: bytes) -> None:
        if self._observe_chunk is not None:
            try:
                self._observe_chunk(piece, False)
            except Exception as error:
                self._fault("response_chunk", error)

    def on_body(self, chunk: bytes, end: bool) -> list[bytes]:
        """Handle a chunk of the body in any mode; returns replies. Raises ProtocolError."""
        end = end or self._mode in ONE_MESSAGE_MODES
        if end or self.state is not _BODY:  # nearly every chunk leaves the state as it is
            self.state = next_state("response", self.state, _LAST_BODY if end else _BODY_PART)
            self.streams = False
        if self._mode is _NONE:
            raise out_of_order("a response body came although response_body_mode is NONE")
        replacement = self._replacement_for(chunk, end) if chunk or self._rewrites else None
        if self._mode is _FULL_DUPLEX:
            answers = replies.streamed(_TO_CLIENT, chunk if replacement is None else replacement, end)
        elif replacement is None:
            answers = [replies.CONTINUE_RESPONSE_BODY]
        else:
            answers = [replies.replaced_response_body(replacement, self._length_of(replacement))]
        if end:
            answers[-1] = self._end_with(answers[-1])
        return answers

    def on_trailers(self) -> list[bytes]:
        """Handle trailers, which end the body; returns replies. Raises ProtocolError."""
        before = self.state
        self.state = next_state("response", before, _TRAILERS)
        self.streams = False
        if before is _DONE:
            return [replies.CONTINUE_RESPONSE_TRAILERS]
        held_back = (self._replacement_for(b"", end=True) if self._rewrites else None) or b""
        if held_back and self._mode is not _FULL_DUPLEX:
            raise ProtocolError(GrpcStatus.INTERNAL, "the end of a response was held back until there was no place for it")
        answers = replies.streamed(_TO_CLIENT, held_back, end=False)
        return [*answers, self._end_with(replies.CONTINUE_RESPONSE_TRAILERS)]

    def finish(self, cause: CloseCause) -> None:
        """Finish the exchange with the cause of the end, and log its errors; idempotent."""
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            return
        try:
            exchange.finish(cause)
        except Exception:
            self._counters.exchange_faults += 1
            logger.exception("finish of the exchange failed")

    def _replacement_for(self, chunk: bytes, end: bool) -> bytes | None:
        unseen = self._mode is _NONE or not (end or self._observe_chunk is not None)
        if unseen or self._active is None:
            return None
        try:
            replacement = self._active.response_chunk(chunk, end)
        except Exception as error:
            self._chunk_fault(error)
            return None
        self._replaced = self._replaced or replacement is not None
        return replacement

    def _length_of(self, body: bytes) -> HeaderMutation | None:
        """Gateways reject a buffered body with a wrong content-length."""
        if self._mode is BodyMode.BUFFERED and self._has_length:
            return mutation({"content-length": str(len(body))}, {})
        return None

    def _end_with(self, reply: bytes) -> bytes:
        self.streams = False
        if self._passes_through and self._set_pass_through is not None:
            self._passes_through = False
            self._set_pass_through(None)
        active = self._active
        if active is not None and active.adds_metadata and self._mode is not _NONE:
            try:
                metadata = active.response_metadata()
                if metadata:
                    reply = replies.with_metadata(reply, as_struct(metadata))
            except Exception as error:
                self._fault("response_metadata", error)
        self.finish(CloseCause.END)
        return reply

    def _chunk_fault(self, error: Exception) -> None:
        self._fault("response_chunk", error)
        if self._replaced:
            raise ProtocolError(GrpcStatus.INTERNAL, "a response could not be rewritten to its end") from error

    def _fault(self, method: str, error: Exception) -> None:
        self._counters.exchange_faults += 1
        logger.error("%s of the exchange failed; the response passes as it is", method, exc_info=error)
        self._active = self._observe_chunk = None
