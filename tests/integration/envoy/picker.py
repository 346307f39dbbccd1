"""The part of endpick under test: a transport, real sessions, and a director that every request scripts by its headers."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from endpick._proto.ext_proc_pb2 import ProcessingRequest
from endpick.api import DirectResponse
from endpick.extproc.messages import read_headers
from endpick.extproc.session import Session, SessionSettings
from endpick.extproc.stream import SessionCounters
from endpick.requests.model import CloseCause, Decision, IncomingRequest, Metadata, Refused, Routed, is_upgrade

T = TypeVar("T")

WAIT_SECONDS = 20.0
REMEMBERED = 100
SETTINGS = SessionSettings(max_request_body_bytes=8 * 1024 * 1024)

Message = tuple[str, bytes]
"""`in` for what the gateway sent, `out` for what we answered."""


@dataclass
class Seen:
    """What one request has shown of itself so far."""

    incoming: IncomingRequest
    response_headers: Mapping[str, str] = field(default_factory=dict)
    served: str | None = None
    gateway_error: str | None = None
    chunks: list[bytes] = field(default_factory=list)
    ends: int = 0
    finishes: list[CloseCause] = field(default_factory=list)


class Exchange:
    """Writes down what it is shown, and replaces one text by another where the request asked for it."""

    def __init__(self, seen: Seen, changed: Callable[[], None]) -> None:
        headers = seen.incoming.headers
        old, _, new = headers.get("x-test-rewrite", "").partition("|")
        self.wants_chunks = "x-test-unseen" not in headers
        self.rewrites = True
        self.adds_metadata = True
        self._seen = seen
        self._changed = changed
        self._old, self._new = old.encode(), new.encode()
        self._held = b""

    def response_headers(self, headers: Mapping[str, str], served: str | None, gateway_error: str | None) -> Mapping[str, str]:
        self._seen.response_headers = headers
        self._seen.served = served
        self._seen.gateway_error = gateway_error
        self._changed()
        return {"x-went-into-resp-headers": "true"}

    def response_chunk(self, chunk: bytes, end: bool) -> bytes | None:
        self._seen.chunks.append(chunk)
        self._seen.ends += end
        self._changed()
        if not self._old:
            return None
        text = (self._held + chunk).replace(self._old, self._new)
        keep = 0 if end else max(n for n in range(len(self._old)) if text.endswith(self._old[:n]))
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def response_unseen(self, size: int) -> bytes | None:
        raise AssertionError("no answer here is as long as that")

    def response_metadata(self) -> Metadata:
        return {}

    def finish(self, cause: CloseCause) -> None:
        self._seen.finishes.append(cause)
        self._changed()


class Director:
    """Does what the request's headers say: `x-test-later`, `x-test-raise`, `x-test-refuse`, `x-test-respond`, `x-test-body`."""

    def __init__(self) -> None:
        self.destination = ""
        self.websocket_destination = ""
        self._changed = threading.Condition()
        self._seen: dict[str, Seen] = {}

    def wants_body(self, headers: Mapping[str, str]) -> bool:
        return "x-test-open" not in headers and not is_upgrade(headers)

    def decide(self, incoming: IncomingRequest) -> Decision | Awaitable[Decision]:
        return self._decide_later(incoming) if "x-test-later" in incoming.headers else self._decide(incoming)

    async def _decide_later(self, incoming: IncomingRequest) -> Decision:
        await asyncio.sleep(float(incoming.headers["x-test-later"]))
        return self._decide(incoming)

    def _decide(self, incoming: IncomingRequest) -> Decision:
        headers = incoming.headers
        if "x-test-raise" in headers:
            raise LookupError(headers["x-test-raise"])
        if "x-test-refuse" in headers:
            status, code, reason = headers["x-test-refuse"].split(",")
            return Refused(int(status), code, "as the test asked", reason or None)
        if "x-test-respond" in headers:
            status, _, body = headers["x-test-respond"].partition(",")
            return DirectResponse(int(status), body.encode() * 1000, {"x-by": "plugin"})
        seen = Seen(incoming)
        with self._changed:
            self._seen[headers.get("x-test-id", "")] = seen
            self._changed.notify_all()
        body = headers.get("x-test-body")
        exchange = Exchange(seen, self._notify)
        destination = headers.get("x-test-destination") or (self.websocket_destination if is_upgrade(headers) else self.destination)
        return Routed((destination,), exchange, {"x-from-picker": "1"}, None if body is None else body.encode())

    def requests(self) -> list[Seen]:
        """Everything routed so far."""
        with self._changed:
            return list(self._seen.values())

    def wait_for(self, test_id: str, condition: Callable[[Seen], bool]) -> Seen:
        """What was seen of a request, once `condition` holds."""
        with self._changed:
            came = self._changed.wait_for(lambda: test_id in self._seen and condition(self._seen[test_id]), WAIT_SECONDS)
            assert came, f"waited in vain; seen of {test_id}: {self._seen.get(test_id)}"
            return self._seen[test_id]

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


class RecordedSession:
    """A session that hands its conversation over when it is closed."""

    def __init__(self, session: Session, over: Callable[[list[Message]], None]) -> None:
        self._session = session
        self._over = over
        self._conversation: list[Message] = []

    @property
    def waiting(self) -> Awaitable[object] | None:
        return self._session.waiting

    @property
    def finished(self) -> bool:
        return self._session.finished

    def receive(self, message: bytes) -> Sequence[bytes]:
        self._conversation.append(("in", message))
        return self._noted(self._session.receive(message))

    def resume(self, result: object) -> Sequence[bytes]:
        return self._noted(self._session.resume(result))

    def fail(self, exception: BaseException) -> Sequence[bytes]:
        return self._noted(self._session.fail(exception))

    def close(self, cause: CloseCause) -> None:
        self._session.close(cause)
        self._over(self._conversation)

    def _noted(self, replies: Sequence[bytes]) -> Sequence[bytes]:
        for reply in replies:
            self._conversation += [("out", reply)] if isinstance(reply, bytes) else [("out", reply.whole())] * reply.times
        return replies


class Picker:
    """Makes the sessions of one server and remembers what the last of them said."""

    def __init__(self) -> None:
        self.director = Director()
        self.counters = SessionCounters()
        self._conversations: deque[list[Message]] = deque(maxlen=REMEMBERED)
        self._closed = threading.Condition()

    def open_session(self) -> RecordedSession:
        """A `SessionFactory`."""
        return RecordedSession(Session(self.director, SETTINGS, self.counters), self._over)

    def conversation_of(self, test_id: str) -> list[Message]:
        """What was said about a request, once its stream is closed."""
        return self.wait_for_close(lambda: next((talk for talk in self._conversations if id_of(talk) == test_id), None))

    def wait_for_close(self, condition: Callable[[], T | None]) -> T:
        """What `condition` returns once it is true; it is tried whenever a stream has been closed."""
        with self._closed:
            result = self._closed.wait_for(condition, WAIT_SECONDS)
            assert result, "waited in vain"
            return result

    def _over(self, conversation: list[Message]) -> None:
        with self._closed:
            self._conversations.append(conversation)
            self._closed.notify_all()


def id_of(conversation: list[Message]) -> str | None:
    """The name that a request goes by."""
    if not conversation:
        return None
    message = ProcessingRequest.FromString(conversation[0][1])
    return read_headers(message.request_headers.headers).get("x-test-id")
