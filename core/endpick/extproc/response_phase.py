"""The second half of a stream: the response until its end, in the gateway's dialect."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from endpick._proto.ext_proc_pb2 import HeaderMutation
from endpick.extproc import replies
from endpick.extproc.headers import as_struct, mutation
from endpick.extproc.modes import ONE_MESSAGE_MODES
from endpick.extproc.replies import Direction
from endpick.extproc.states import MESSAGE_TRANSITIONS, MessagePart, MessageState, misplaced, out_of_order
from endpick.extproc.stream import GrpcStatus, LetPass, PassingBody, ProtocolError, Reply, SessionCounters
from endpick.requests.long_body import Body, LongBody, Piece
from endpick.requests.model import BodyMode, CloseCause, Exchange

logger = logging.getLogger(__name__)

# Globals, because a member of an enumeration costs several times as much to look up, and each message looks up some.
_IDLE: Final = MessageState.IDLE
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

_SHOWN_BYTES: Final = 256 * 1024
"""How much of a long piece the exchange is shown at once. To join sixty megabytes so takes 5 ms; 50, where each part is so long that the
C library has the system map memory for it, or all of them are one."""
_MOST_SHOWN: Final = 8
"""Of the parts of a long piece, from its beginning, and from its end: what is between them is not looked at, because all of sixty megabytes
may be what is looked for. Gateways buffer less unless they are told to."""
LONGEST_SHOWN_BYTES: Final = 2 * _MOST_SHOWN * _SHOWN_BYTES
"""A piece of more is to be given to `on_long_body`, in whatever form a transport has it."""


class ResponsePhase(PassingBody):
    """One response, from its headers to its end, and the exchange that sees it pass.

    Without an exchange (the gateway answered by itself, or shows us responses only) everything passes as it is.
    """

    __slots__ = (
        "_asked",
        "_counters",
        "_has_length",
        "_let_pass",
        "_longer",
        "_mode",
        "_passes",
        "_replaced",
        "_rewrites",
        "_seen_by",
        "exchange",
        "state",
        "streams",
    )

    def __init__(self, mode: BodyMode, counters: SessionCounters, let_pass: LetPass | None) -> None:
        """`let_pass` tells the transport that pieces may pass, or with None no more; None where a transport cannot do that."""
        self._mode = mode
        self._counters = counters
        self._let_pass = let_pass
        self.exchange: Exchange | None = None
        """Of the request, from when it is routed until the exchange is over."""
        self._asked: Exchange | None = None
        """The same from the headers of the response on, unless it has raised."""
        self._seen_by: Callable[[bytes, bool], bytes | None] | None = None
        """What is shown every piece: `Exchange.response_chunk`, if it wants to see more than the last."""
        self._rewrites = False
        """Whether it may answer with another piece, and has to see one without bytes as well: it may hold something back."""
        self._replaced = False
        self._longer: tuple[LongBody, bool] | None = None
        """What comes before the piece that is being answered, in one reply with it, and whether any of it is replaced."""
        self._has_length = False
        self._passes = False
        """Whether the transport was told that pieces may pass."""
        self.state = _IDLE
        self.streams = False
        """Whether pieces may go to `on_streamed`: the body is under way, and each is answered with bytes."""

    def on_headers(self, headers: dict[str, str], end: bool, served: str | None) -> list[Reply]:
        """The beginning of the response, and all of it if `end`; `served` is where it comes from, if the gateway says so.

        Raises:
            ProtocolError: the headers came before.
        """
        part = _LAST_HEADERS if end else _HEADERS
        following = MESSAGE_TRANSITIONS.get((self.state, part))
        if following is None:
            raise misplaced("response", self.state, part)
        self.state = following
        exchange = self._asked = self.exchange
        answer = replies.CONTINUE_RESPONSE_HEADERS
        if exchange is not None:
            self._has_length = "content-length" in headers
            try:
                added = exchange.response_headers(headers, served)
                if exchange.wants_chunks:
                    self._seen_by = exchange.response_chunk
                self._rewrites = exchange.rewrites
                if added:
                    answer = replies.response_headers(tuple(added.items()))
            except Exception as error:
                self._fault("response_headers", error)
        if end:
            if self._rewrites:
                self._instead_of(b"", end=True)
            return [self._ended(answer)]
        if self._mode is _FULL_DUPLEX:
            self.streams = True
            if self._let_pass is not None and (self._seen_by is None or not self._rewrites):
                self._passes = True
                self._let_pass(self)
        return [answer]

    def on_streamed(self, chunk: bytes, head: bytes) -> Sequence[bytes]:
        """A piece that is not the last of a body that streams; with `head` in front it is the reply that leaves it as it is.

        Raises:
            ProtocolError: the body is being rewritten and cannot be rewritten to its end.
        """
        instead = None
        if self._seen_by is not None:
            try:
                instead = self._seen_by(chunk, False)
            except Exception as error:
                self._chunk_fault(error)
        if instead is None:
            return (head + chunk,)
        self._replaced = True
        return replies.streamed(_TO_CLIENT, instead, end=False)

    def let_pass(self, piece: bytes) -> None:
        """See `PassingBody.let_pass`."""
        if self._seen_by is not None:
            try:
                self._seen_by(piece, False)
            except Exception as error:
                self._fault("response_chunk", error)

    def on_body(self, chunk: bytes, end: bool) -> list[Reply]:
        """A piece of the body; the last one if `end`.

        Raises:
            ProtocolError: no body can come here, or one that is being rewritten cannot be rewritten to its end.
        """
        end = end or self._mode in ONE_MESSAGE_MODES
        if end or self.state is not _BODY:  # else it stays as it is, as for nearly every piece
            part = _LAST_BODY if end else _BODY_PART
            following = MESSAGE_TRANSITIONS.get((self.state, part))
            if following is None:
                raise misplaced("response", self.state, part)
            self.state = following
            self.streams = False
        if self._mode is _NONE:
            raise out_of_order("a response body came although response_body_mode is NONE")
        instead = self._instead_of(chunk, end) if chunk or self._rewrites else None
        answers: list[Reply]
        if self._mode is _FULL_DUPLEX:
            answers = [*replies.streamed(_TO_CLIENT, chunk if instead is None else instead, end)]
        elif self._longer is not None:
            answers = [self._at_once(self._longer, chunk, instead)]
        elif instead is None:
            answers = [replies.CONTINUE_RESPONSE_BODY]
        else:
            answers = [replies.replaced_response_body(instead, self._length_of(instead))]
        if end:
            answers[-1] = self._ended(answers[-1])
        return answers

    def on_long_body(self, body: LongBody, end: bool) -> Sequence[Reply]:
        """The same of a piece of megabytes: one message that a gateway which buffers sends. It is never joined, and shown in parts.

        Of more than four mebibytes the exchange is shown the first two and the last two.

        Raises:
            ProtocolError: as `on_body`.
        """
        if not body.pieces or (self.state, _BODY_PART) not in MESSAGE_TRANSITIONS or (self._rewrites and self._seen_by is None):
            return self.on_body(body.whole(), end)
        *pieces, last = body.pieces
        earlier = LongBody(pieces)
        sent = earlier if self._seen_by is None else self._shown(earlier)
        if self._mode is _FULL_DUPLEX:
            return [*replies.streamed_long(_TO_CLIENT, sent, end=False), *self.on_body(bytes(last), end)]
        self._longer = sent, sent is not earlier
        return self.on_body(bytes(last), end)

    def _shown(self, body: LongBody) -> LongBody:
        """What is sent in place of a long piece that goes on: the same object where nothing changes."""
        pieces: list[Piece] = []
        is_changed = False
        groups = [*body.groups(_SHOWN_BYTES)]
        for position, group in enumerate(groups):
            if _MOST_SHOWN <= position < len(groups) - _MOST_SHOWN:
                if position == _MOST_SHOWN and (before := self._before_unseen(groups[_MOST_SHOWN : len(groups) - _MOST_SHOWN])):
                    is_changed = True
                    pieces.append(before)
                pieces += group
                continue
            instead = self._instead_of(b"".join(group), end=False)
            if instead is None:
                pieces += group
            else:
                is_changed = True
                pieces.append(instead)
        return LongBody(pieces) if is_changed else body

    def _before_unseen(self, groups: Sequence[Sequence[Piece]]) -> bytes | None:
        """What is sent before these pieces, which the exchange is not shown."""
        if self._asked is None or self._mode is _NONE:
            return None
        try:
            return self._asked.response_unseen(sum(len(piece) for group in groups for piece in group))
        except Exception as error:
            self._chunk_fault(error)
            return None

    def _at_once(self, longer: tuple[LongBody, bool], last: bytes, instead: bytes | None) -> Reply:
        """One reply to a long piece, of which `last` is the end."""
        self._longer = None
        earlier, is_changed = longer
        if instead is None and not is_changed:
            return replies.CONTINUE_RESPONSE_BODY
        whole = LongBody([*earlier.pieces, last if instead is None else instead])
        return replies.replaced_response_body(whole, self._length_of(whole))

    def on_trailers(self) -> list[Reply]:
        """Trailers; they end the body if no message of it has said so.

        Raises:
            ProtocolError: no trailers can come here, or there is no place left for the end of the body.
        """
        before, part = self.state, _TRAILERS
        following = MESSAGE_TRANSITIONS.get((before, part))
        if following is None:
            raise misplaced("response", before, part)
        self.state = following
        self.streams = False
        if before is _DONE:
            return [replies.CONTINUE_RESPONSE_TRAILERS]
        held_back = (self._instead_of(b"", end=True) if self._rewrites else None) or b""
        if held_back and self._mode is not _FULL_DUPLEX:
            raise ProtocolError(GrpcStatus.INTERNAL, "the end of a response was held back until there was no place for it")
        answers = replies.streamed(_TO_CLIENT, held_back, end=False)
        return [*answers, self._ended(replies.CONTINUE_RESPONSE_TRAILERS)]

    def finish(self, cause: CloseCause) -> None:
        """The exchange is over, if there is one that is not."""
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            return
        try:
            exchange.finish(cause)
        except Exception:
            self._counters.exchange_faults += 1
            logger.exception("finish of the exchange failed")

    def _instead_of(self, chunk: bytes, end: bool) -> bytes | None:
        """What the exchange wants sent in place of the chunk; None: the chunk."""
        unseen = self._mode is _NONE or not (end or self._seen_by is not None)
        if unseen or self._asked is None:
            return None
        try:
            instead = self._asked.response_chunk(chunk, end)
        except Exception as error:
            self._chunk_fault(error)
            return None
        self._replaced = self._replaced or instead is not None
        return instead

    def _length_of(self, body: Body) -> HeaderMutation | None:
        """The new content-length of a buffered body, without which the gateway refuses it; it drops that of others itself."""
        if self._mode is BodyMode.BUFFERED and self._has_length:
            return mutation({"content-length": str(len(body))}, {})
        return None

    def _ended(self, reply: Reply) -> Reply:
        """The last reply of the response, with what the exchange tells the gateway; after that the exchange is over."""
        self.streams = False
        if self._passes and self._let_pass is not None:
            self._passes = False
            self._let_pass(None)
        asked = self._asked
        if asked is not None and asked.tells_metadata and self._mode is not _NONE:
            try:
                metadata = asked.response_metadata()
                if metadata:
                    reply = replies.with_metadata(reply, as_struct(metadata))
            except Exception as error:
                self._fault("response_metadata", error)
        self.finish(CloseCause.END)
        return reply

    def _chunk_fault(self, error: Exception) -> None:
        """What was not replaced so far passes as it is; what was would be half of one thing and half of another."""
        self._fault("response_chunk", error)
        if self._replaced:
            raise ProtocolError(GrpcStatus.INTERNAL, "a response could not be rewritten to its end") from error

    def _fault(self, method: str, error: Exception) -> None:
        """An exchange that raised is not asked again; its request goes on."""
        self._counters.exchange_faults += 1
        logger.error("%s of the exchange failed; the response passes as it is", method, exc_info=error)
        self._asked = self._seen_by = None
