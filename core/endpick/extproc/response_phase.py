"""The response half of a stream: shows each piece to the exchange and hands it back, in the gateway's dialect."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from endpick._proto.ext_proc_pb2 import HeaderMutation, HttpBody, HttpHeaders
from endpick.extproc import replies
from endpick.extproc.counters import SessionCounters
from endpick.extproc.headers import mutation, read_headers
from endpick.extproc.metadata import as_struct
from endpick.extproc.replies import Direction
from endpick.extproc.request_phase import out_of_order
from endpick.extproc.stream import ProtocolError, Status
from endpick.requests.decision import Exchange
from endpick.requests.incoming import BodyMode

logger = logging.getLogger(__name__)

_ONE_MESSAGE = frozenset({BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL})


class ResponsePhase:
    """One response, from its headers to its end.

    Without an exchange (the gateway answered by itself, or shows us responses only) everything passes as it is.
    """

    __slots__ = ("_counters", "_exchange", "_has_length", "_mode", "_replaced", "_trailers", "_wants_chunks", "complete", "started")

    def __init__(self, mode: BodyMode, counters: SessionCounters) -> None:
        self._mode = mode
        self._counters = counters
        self._exchange: Exchange | None = None
        self._wants_chunks = False
        self._replaced = False
        self._has_length = False
        self._trailers = False
        self.started = False
        self.complete = False

    def on_headers(self, message: HttpHeaders, exchange: Exchange | None, served: str | None) -> list[bytes]:
        """The beginning of the response."""
        if self.started:
            raise out_of_order("response headers came twice")
        self.started = True
        self._exchange = exchange
        headers = read_headers(message.headers)
        self._has_length = "content-length" in headers
        answer = replies.CONTINUE_RESPONSE_HEADERS if exchange is None else self._headers_answer(exchange, headers, served)
        if not message.end_of_stream:
            return [answer]
        self._instead_of(b"", end=True)
        return [self._with_closing_metadata(answer)]

    def on_body(self, message: HttpBody) -> list[bytes]:
        """A piece of the body."""
        if not self.started:
            raise out_of_order("a response body came before the response headers")
        if self.complete:
            raise out_of_order("a response body came after the end of the response")
        if self._mode is BodyMode.NONE:
            raise out_of_order("a response body came although response_body_mode is NONE")
        chunk = message.body
        end = message.end_of_stream or self._mode in _ONE_MESSAGE
        instead = self._instead_of(chunk, end)
        if self._mode is BodyMode.FULL_DUPLEX_STREAMED:
            answers = replies.streamed(Direction.RESPONSE, chunk if instead is None else instead, end)
        elif instead is None:
            answers = [replies.CONTINUE_RESPONSE_BODY]
        else:
            answers = [replies.replaced_response_body(instead, self._length_of(instead))]
        if end:
            answers[-1] = self._with_closing_metadata(answers[-1])
        return answers

    def on_trailers(self) -> list[bytes]:
        """Trailers; they end the body if no message of it has said so."""
        if not self.started:
            raise out_of_order("response trailers came before the response headers")
        if self._trailers:
            raise out_of_order("response trailers came twice")
        self._trailers = True
        if self.complete:
            return [replies.CONTINUE_RESPONSE_TRAILERS]
        held_back = self._instead_of(b"", end=True) or b""
        if held_back and self._mode is not BodyMode.FULL_DUPLEX_STREAMED:
            raise ProtocolError(Status.INTERNAL, "the end of a response was held back until there was no place for it")
        answers = replies.streamed(Direction.RESPONSE, held_back, end=False)
        return [*answers, self._with_closing_metadata(replies.CONTINUE_RESPONSE_TRAILERS)]

    def _headers_answer(self, exchange: Exchange, headers: Mapping[str, str], served: str | None) -> bytes:
        try:
            added = exchange.response_headers(headers, served)
            self._wants_chunks = exchange.wants_chunks
            return replies.response_headers(tuple(added.items()))
        except Exception as error:
            self._fault("response_headers", error)
            return replies.CONTINUE_RESPONSE_HEADERS

    def _instead_of(self, chunk: bytes, end: bool) -> bytes | None:
        """What the exchange wants sent in place of the chunk; None: the chunk."""
        self.complete = end
        unseen = self._mode is BodyMode.NONE or not (end or self._wants_chunks)
        if unseen or self._exchange is None:
            return None
        try:
            instead = self._exchange.response_chunk(chunk, end)
        except Exception as error:
            self._fault("response_chunk", error)
            if self._replaced:
                raise ProtocolError(Status.INTERNAL, "a response could not be rewritten to its end") from error
            return None
        self._replaced = self._replaced or instead is not None
        return instead

    def _length_of(self, body: bytes) -> HeaderMutation | None:
        """The new content-length of a buffered body, without which the gateway refuses it; it drops that of others itself."""
        if self._mode is BodyMode.BUFFERED and self._has_length:
            return mutation({"content-length": str(len(body))}, {})
        return None

    def _with_closing_metadata(self, reply: bytes) -> bytes:
        if self._exchange is None or self._mode is BodyMode.NONE:
            return reply
        try:
            metadata = self._exchange.response_metadata()
            return replies.with_metadata(reply, as_struct(metadata)) if metadata else reply
        except Exception as error:
            self._fault("response_metadata", error)
            return reply

    def _fault(self, method: str, error: Exception) -> None:
        """An exchange that raised is not asked again; its request goes on."""
        self._counters.exchange_faults += 1
        logger.error("%s of the exchange failed; the response passes as it is", method, exc_info=error)
        self._exchange = None
