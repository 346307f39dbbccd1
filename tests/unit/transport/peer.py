"""A client without a socket, on a connection without one, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from jh2._hazmat import Decoder

from endpick.extproc.stream import StreamSession
from endpick.requests.model import CloseCause
from endpick.transport.h2 import frames
from endpick.transport.h2.connection import Connection
from endpick.transport.h2.frames import (
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    FRAME_HEAD_BYTES,
    MAX_STREAM_ID,
    ErrorCode,
    FrameType,
    read_frame_head,
)
from endpick.transport.h2.headers import encode
from endpick.transport.h2.stream import MESSAGE_HEAD, Stream
from endpick.transport.limits import Limits, TransportCounters
from endpick.transport.methods import Method

PATH = "/test.Echo/Stream"
ENDLESS_PATH = "/test.Echo/Endless"
REQUEST = {
    ":method": "POST",
    ":scheme": "http",
    ":path": PATH,
    ":authority": "picker",
    "content-type": "application/grpc",
    "te": "trailers",
}


@dataclass
class Frame:
    """A frame that the server sent."""

    kind: FrameType
    flags: int
    stream: int
    payload: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def ends_stream(self) -> bool:
        return self.kind in (FrameType.HEADERS, FrameType.DATA) and bool(self.flags & END_STREAM)

    @property
    def code(self) -> ErrorCode:
        return ErrorCode(int.from_bytes(self.payload[:4] if self.kind is FrameType.RST_STREAM else self.payload[4:8], "big"))


@dataclass
class EchoSession:
    """Echoes; `later` waits, `finish` ends, `reply:N` answers N bytes, `split:N` N replies."""

    received: list[bytes] = field(default_factory=list)
    causes: list[CloseCause] = field(default_factory=list)
    waiting: Awaitable[object] | None = None
    finished: bool = False

    def receive(self, message: bytes) -> Sequence[bytes]:
        self.received.append(message)
        verb, _, rest = message.partition(b":")
        match verb:
            case b"later":
                self.waiting = Awaitable.__new__(Never)
                return ()
            case b"finish":
                self.finished = True
            case b"reply":
                return (b"r" * int(rest),)
            case b"split":
                return (b"s",) * int(rest)
        return () if self.waiting is not None else (message,)

    def resume(self, result: object) -> Sequence[bytes]:
        self.waiting = None
        return (f"resumed:{result}".encode(),)

    def fail(self, exception: BaseException) -> Sequence[bytes]:
        self.waiting = None
        self.finished = True
        return (f"failed:{exception}".encode(),)

    def close(self, cause: CloseCause) -> None:
        self.causes.append(cause)


class Never(Awaitable[object]):
    """Stands for something to await; the tests resume by hand."""

    def __await__(self):
        raise AssertionError("no session awaits in these tests")


class FakeTask:
    """Stands for the task that awaits."""

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> bool:
        self.cancelled = True
        return True


class Peer:
    """Sends frames to a connection and keeps what comes back."""

    def __init__(
        self,
        limits: Limits | None = None,
        session: Callable[[], StreamSession] | None = None,
        *,
        greet: bool = True,
        settings: dict[int, int] | None = None,
    ) -> None:
        self.now = 1000.0
        self.sessions: list[EchoSession] = []
        self.tasks: list[FakeTask] = []
        self.waiting: list[Stream] = []
        self.counters = TransportCounters()
        open_session = session or self._open_session
        methods = {PATH: Method(open_session), ENDLESS_PATH: Method(open_session, holds_drain=False)}
        self.connection = Connection(methods, limits or Limits(), self.counters, self._spawn, self.now)
        self._unread = b""
        self._decoder = Decoder(2**16)
        self._encoded: dict[tuple[tuple[str, str], ...], bytes] = {}
        if greet:
            self.send(frames.PREFACE + frames.settings(settings or {}) + frames.SETTINGS_ACK)
            self.take()

    def _open_session(self) -> StreamSession:
        self.sessions.append(EchoSession())
        return self.sessions[-1]

    def _spawn(self, stream: Stream, waiting: Awaitable[object]) -> None:
        stream.task = task = FakeTask()  # type: ignore[assignment]
        self.tasks.append(task)
        self.waiting.append(stream)

    def send(self, data: bytes) -> None:
        self.connection.receive(data, self.now)

    def open(self, stream: int, *, end: bool = False, **changes: str | None) -> None:
        """Send request headers; keyword `te=None` leaves one out, `path="/x"` changes a pseudo-header."""
        self.send(self.headers(stream, end=end, **changes))

    def headers(self, stream: int, *, end: bool = False, **changes: str | None) -> bytes:
        named = dict(REQUEST)
        for name, value in changes.items():
            key = f":{name}" if f":{name}" in REQUEST else name.replace("_", "-")
            named[key] = value  # type: ignore[assignment]
        fields = [(name, value) for name, value in named.items() if value is not None]
        return raw_headers(stream, fields, end=end)

    def message(self, stream: int, message: bytes, *, end: bool = False) -> None:
        self.send(data(stream, MESSAGE_HEAD.pack(0, len(message)) + message, end=end))

    def take(self) -> list[Frame]:
        """Frames since last asked."""
        taken = []
        received, self._unread = split_frames(self._unread + self.connection.outbox.take())
        for kind, flags, stream, payload in received:
            frame = Frame(FrameType(kind), flags, stream, payload)
            if frame.kind is FrameType.HEADERS:
                frame.headers = {name.decode(): value.decode() for name, value, _ in self._decoder.decode(frame.payload, True)}
            taken.append(frame)
        return taken

    def replies(self, stream: int) -> list[bytes]:
        """gRPC messages on a stream since last asked; other frames are dropped."""
        body = b"".join(frame.payload for frame in self.take() if frame.kind is FrameType.DATA and frame.stream == stream)
        messages = []
        while body:
            length = MESSAGE_HEAD.unpack_from(body)[1]
            messages.append(body[5 : 5 + length])
            body = body[5 + length :]
        return messages

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.connection.tick(self.now)


def raw_headers(stream: int, fields: Sequence[tuple[str, str]], *, end: bool = False) -> bytes:
    return frames.headers(stream, encode((name.encode("latin-1"), value.encode("latin-1")) for name, value in fields), end_stream=end)


def data(stream: int, payload: bytes, *, end: bool = False) -> bytes:
    return frame(FrameType.DATA, END_STREAM if end else 0, stream, payload)


def split_frames(data: bytes) -> tuple[list[tuple[int, int, int, bytes]], bytes]:
    """Type, flags, stream and payload of each whole frame, and the bytes after them."""
    found = []
    position = 0
    while len(data) - position >= FRAME_HEAD_BYTES:
        length_and_kind, flags, stream = read_frame_head(data, position)
        start = position + FRAME_HEAD_BYTES
        if start + (length_and_kind >> 8) > len(data):
            break
        position = start + (length_and_kind >> 8)
        found.append((length_and_kind & 0xFF, flags, stream & MAX_STREAM_ID, data[start:position]))
    return found, data[position:]


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return FRAME_HEAD.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream) + payload


def continuation(stream: int, payload: bytes, *, end: bool = False) -> bytes:
    return frame(FrameType.CONTINUATION, END_HEADERS if end else 0, stream, payload)


class FakeSocket:
    """Keeps what is written, as it is written."""

    def __init__(self) -> None:
        self.pieces: list[bytes | memoryview] = []

    def write(self, data: bytes) -> None:
        self.pieces.append(data)

    def writelines(self, list_of_data: list[bytes | memoryview]) -> None:
        self.pieces += list_of_data
