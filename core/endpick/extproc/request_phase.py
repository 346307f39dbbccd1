"""The request half of a stream: gathers what the decision needs, then answers in the gateway's dialect."""

from __future__ import annotations

from endpick._proto.ext_proc_pb2 import HttpBody, HttpHeaders
from endpick.extproc import replies
from endpick.extproc.headers import mutation, read_headers
from endpick.extproc.memory import MemoryBudget
from endpick.extproc.metadata import destination_metadata
from endpick.extproc.names import DESTINATION_HEADER
from endpick.extproc.replies import Direction
from endpick.extproc.stream import ProtocolError, Status
from endpick.requests.decision import Refused, Routed
from endpick.requests.incoming import BodyMode, Delivery

_ONE_MESSAGE = frozenset({BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL})
_PIECE_BYTES = 64
"""What a piece of a body costs beside its bytes: a body may come byte by byte."""
NO_MEMORY = Refused(503, "ServiceUnavailable", "the requests under way hold all the memory that there is for them")


class UnroutableError(Exception):
    """The request is refused before the director has seen it."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused


class RequestPhase:
    """One request until it has been routed, and the rest of its body after that.

    A method that takes a message returns the replies that may go at once. When `ready` turns True the director has all it
    will get, and `route` answers everything that is still open.
    """

    __slots__ = (
        "_chunks",
        "_delivery",
        "_ended",
        "_head_bytes",
        "_headers_answered",
        "_held_bytes",
        "_max_body_bytes",
        "_memory",
        "_messages",
        "_readable",
        "_size",
        "_trailers",
        "headers",
        "ready",
        "routed",
    )

    def __init__(self, delivery: Delivery, max_body_bytes: int, memory: MemoryBudget) -> None:
        self._delivery = delivery
        self._max_body_bytes = max_body_bytes
        self._memory = memory
        self._head_bytes = 0
        self._held_bytes = 0
        self._chunks: list[bytes] = []
        self._size = 0
        self._messages = 0
        self._readable = False
        self._ended = False
        self._trailers = False
        self._headers_answered = False
        self.headers: dict[str, str] | None = None
        self.ready = False
        self.routed = False

    def read_body(self) -> bytes | None:
        """The body as far as it came, joined once; None if there is none to read."""
        if not self._readable:
            return None
        if len(self._chunks) != 1:
            self._chunks = [b"".join(self._chunks)]
        return self._chunks[0]

    def hold(self, size: int) -> bool:
        """Account for bytes that are kept until the decision; False if all requests together keep too many."""
        self._held_bytes += size
        return self._memory.hold(size)

    def release(self) -> None:
        """The stream is over: nothing is kept any more."""
        self._memory.hold(-self._held_bytes)
        self._head_bytes = self._held_bytes = 0

    def on_headers(self, message: HttpHeaders, size: int) -> list[bytes]:
        """The beginning of the request, kept as long as the stream; `size` in bytes.

        Raises:
            UnroutableError: there is no memory left.
        """
        if self.headers is not None:
            raise out_of_order("request headers came twice")
        self._head_bytes = size
        if not self.hold(size):
            raise UnroutableError(NO_MEMORY)
        self.headers = read_headers(message.headers)
        self._ended = message.end_of_stream
        self._readable = not self._ended and self._delivery.sees_request_body
        self.ready = not self._readable
        if self._readable and self._delivery.request_body in _ONE_MESSAGE:
            self._headers_answered = True
            return [replies.CONTINUE_REQUEST_HEADERS]
        return []

    def on_body(self, message: HttpBody) -> list[bytes]:
        """A piece of the body.

        Raises:
            UnroutableError: with this piece it is more than `max_body_bytes`, or there is no memory left.
        """
        mode = self._delivery.request_body
        if self.headers is None:
            raise out_of_order("a request body came before the request headers")
        if mode is BodyMode.NONE:
            raise out_of_order("a request body came although request_body_mode is NONE")
        if self._ended:
            raise out_of_order("a request body came after the end of the request")
        self._ended = message.end_of_stream or mode in _ONE_MESSAGE
        if self.routed:
            return [replies.CONTINUE_REQUEST_BODY]
        self._readable = mode is not BodyMode.BUFFERED_PARTIAL or message.end_of_stream
        self.ready = self._ended
        self._hold(message.body)
        return []

    def on_trailers(self) -> list[bytes]:
        """Trailers end the body; no message of it has said so.

        Raises:
            UnroutableError: a gateway that buffers bodies has none to hand over, and its headers can be changed no more.
        """
        if self.headers is None:
            raise out_of_order("request trailers came before the request headers")
        if self._trailers:
            raise out_of_order("request trailers came twice")
        self._trailers = self._ended = True
        if self.routed:
            return [replies.CONTINUE_REQUEST_TRAILERS]
        if self._headers_answered:
            raise UnroutableError(Refused(400, "BadRequest", "a request has trailers but no body"))
        self.ready = True
        return []

    def route(self, routed: Routed) -> list[bytes]:
        """Answer all that came so far with the decision."""
        self.routed = True
        body = routed.body if self._readable else None
        answers = [self._routing_answer(routed, body)]
        if not self._headers_answered:
            answers += self._body_answers(body)
        if self._trailers:
            answers.append(replies.CONTINUE_REQUEST_TRAILERS)
        self._chunks.clear()
        self._memory.hold(self._head_bytes - self._held_bytes)
        self._held_bytes = self._head_bytes
        return answers

    def _routing_answer(self, routed: Routed, body: bytes | None) -> bytes:
        destination = ",".join(routed.destinations)
        if not (self._headers_answered or body is not None or routed.set_headers or routed.dynamic_metadata):
            return replies.destination_only(destination)
        own = {DESTINATION_HEADER: destination}
        if body is not None and self.headers is not None and "content-length" in self.headers:
            own["content-length"] = str(len(body))
        headers = mutation(own, routed.set_headers)
        metadata = destination_metadata(destination, routed.dynamic_metadata)
        if self._headers_answered:
            return replies.buffered_request_body(headers, metadata, body)
        return replies.request_headers(headers, metadata)

    def _body_answers(self, replaced: bytes | None) -> list[bytes]:
        body = self.read_body()
        if body is None:
            return []
        if self._delivery.request_body is BodyMode.FULL_DUPLEX_STREAMED:
            return replies.streamed(Direction.REQUEST, body if replaced is None else replaced, end=not self._trailers)
        if replaced is None:
            return [replies.CONTINUE_REQUEST_BODY] * self._messages
        pieces = (replaced if position == 0 else b"" for position in range(self._messages))
        return [replies.replaced_request_body(piece) for piece in pieces]

    def _hold(self, chunk: bytes) -> None:
        self._messages += 1
        # Where each piece is owed an answer, even an empty one has to be remembered.
        if not chunk and self._delivery.request_body is BodyMode.FULL_DUPLEX_STREAMED:
            return
        self._size += len(chunk)
        if self._size > self._max_body_bytes:
            self._chunks.clear()
            limit = f"the request body is larger than the limit of {self._max_body_bytes} bytes"
            raise UnroutableError(Refused(413, "PayloadTooLarge", limit))
        if not self.hold(len(chunk) + _PIECE_BYTES):
            self._chunks.clear()
            raise UnroutableError(NO_MEMORY)
        self._chunks.append(chunk)


def out_of_order(what: str) -> ProtocolError:
    """The gateway sent something that cannot come here."""
    return ProtocolError(Status.INVALID_ARGUMENT, f"{what}; the messages of a stream must follow one HTTP request")
