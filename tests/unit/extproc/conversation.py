"""Messages of a gateway, readable replies, and a director and exchange that record their calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from google.protobuf.json_format import MessageToDict

from endpick._proto.ext_proc_pb2 import HeaderMutation, ProcessingRequest, ProcessingResponse
from endpick.extproc.session import Session
from endpick.requests.model import BodyMode, CloseCause, Decision, IncomingRequest, Metadata, Routed

ENDPOINT = "10.0.0.1:8000"
FULL_DUPLEX = BodyMode.FULL_DUPLEX_STREAMED


def headers_message(
    kind: str,
    headers: Mapping[str, str],
    end: bool = False,
    metadata: Mapping[str, Mapping[str, object]] | None = None,
) -> bytes:
    message = ProcessingRequest()
    part = getattr(message, kind)
    part.end_of_stream = end
    part.headers.SetInParent()
    for name, value in headers.items():
        part.headers.headers.add(key=name, raw_value=value.encode())
    return with_metadata(message, metadata).SerializeToString()


def with_metadata(message: ProcessingRequest, metadata: Mapping[str, Mapping[str, object]] | None) -> ProcessingRequest:
    for namespace, entries in (metadata or {}).items():
        message.metadata_context.filter_metadata[namespace].update(dict(entries))
    return message


def request_headers(
    headers: Mapping[str, str] | None = None,
    *,
    end: bool = False,
    request_body: BodyMode = FULL_DUPLEX,
    response_body: BodyMode = FULL_DUPLEX,
    early: bool = False,
    metadata: Mapping[str, Mapping[str, object]] | None = None,
) -> bytes:
    """The first message of a stream."""
    named = {":method": "POST", ":path": "/v1/chat/completions", **(headers or {})}
    message = ProcessingRequest.FromString(headers_message("request_headers", named, end, metadata))
    message.protocol_config.request_body_mode = int(request_body)
    message.protocol_config.response_body_mode = int(response_body)
    message.protocol_config.send_body_without_waiting_for_header_response = early
    return message.SerializeToString()


def request_body(body: bytes, end: bool = False) -> bytes:
    message = ProcessingRequest()
    message.request_body.body = body
    message.request_body.end_of_stream = end
    return message.SerializeToString()


def request_trailers() -> bytes:
    message = ProcessingRequest()
    message.request_trailers.SetInParent()
    return message.SerializeToString()


def response_headers(
    headers: Mapping[str, str] | None = None,
    *,
    end: bool = False,
    metadata: Mapping[str, Mapping[str, object]] | None = None,
) -> bytes:
    return headers_message("response_headers", {":status": "200", **(headers or {})}, end, metadata)


def response_body(body: bytes, end: bool = False) -> bytes:
    message = ProcessingRequest()
    message.response_body.body = body
    message.response_body.end_of_stream = end
    return message.SerializeToString()


def response_trailers() -> bytes:
    message = ProcessingRequest()
    message.response_trailers.SetInParent()
    return message.SerializeToString()


@dataclass(frozen=True)
class Reply:
    """One ProcessingResponse, flattened to what a test asks about."""

    kind: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """Of a streamed reply, of a replacement, or of an immediate response; b"" also for `clear_body`."""
    end: bool = False
    clear_route_cache: bool = False
    metadata: Mapping[str, object] = field(default_factory=dict)
    status: int = 0


def read(reply: bytes) -> Reply:
    message = ProcessingResponse.FromString(reply)
    kind = message.WhichOneof("response")
    assert kind is not None
    metadata = MessageToDict(message.dynamic_metadata)
    if kind == "immediate_response":
        answer = message.immediate_response
        return Reply(kind, set_headers(answer.headers), answer.body, metadata=metadata, status=int(answer.status.code))
    if kind.endswith("trailers"):
        return Reply(kind, set_headers(getattr(message, kind).header_mutation), metadata=metadata)
    common = getattr(message, kind).response
    mutation = common.body_mutation
    body, end = None, False
    match mutation.WhichOneof("mutation"):
        case "streamed_response":
            body, end = mutation.streamed_response.body, mutation.streamed_response.end_of_stream
        case "body":
            body = mutation.body
        case "clear_body":
            body = b"" if mutation.clear_body else None
    return Reply(kind, set_headers(common.header_mutation), body, end, common.clear_route_cache, metadata)


def set_headers(mutation: HeaderMutation) -> dict[str, str]:
    return {option.header.key: option.header.raw_value.decode() for option in mutation.set_headers}


def talk(session: Session, *messages: bytes) -> list[Reply]:
    """Feed messages in order and read all replies."""
    replies: list[Reply] = []
    for message in messages:
        replies += map(read, session.receive(message))
    return replies


class NotedExchange:
    """Writes down how it was called; `rewrite` decides what replaces a chunk."""

    def __init__(
        self,
        *,
        wants_chunks: bool = True,
        rewrites: bool = True,
        adds_metadata: bool = True,
        added: Mapping[str, str] | None = None,
        rewrite: Callable[[bytes, bool], bytes | None] = lambda chunk, end: None,
        metadata: Metadata | None = None,
    ) -> None:
        self.wants_chunks = wants_chunks
        self.rewrites = rewrites
        self.adds_metadata = adds_metadata
        self.added = added or {}
        self.rewrite = rewrite
        self.metadata = metadata or {}
        self.headers: Mapping[str, str] = {}
        self.served: str | None = None
        self.gateway_error: str | None = None
        self.chunks: list[tuple[bytes, bool]] = []
        self.finishes: list[CloseCause] = []

    def response_headers(self, headers: Mapping[str, str], served: str | None, gateway_error: str | None) -> Mapping[str, str]:
        self.headers, self.served, self.gateway_error = headers, served, gateway_error
        return self.added

    def response_chunk(self, chunk: bytes, end: bool) -> bytes | None:
        self.chunks.append((chunk, end))
        return self.rewrite(chunk, end)

    def response_metadata(self) -> Metadata:
        return self.metadata

    def finish(self, cause: CloseCause) -> None:
        self.finishes.append(cause)


class NotedDirector:
    """Always decides the same and keeps what it was asked."""

    def __init__(self, decision: Decision | Awaitable[Decision] | None = None, wants: bool = True) -> None:
        self.wants = wants
        self.exchange = NotedExchange()
        self.decision = Routed((ENDPOINT,), self.exchange) if decision is None else decision
        self.asked: list[IncomingRequest] = []

    def wants_body(self, headers: Mapping[str, str]) -> bool:
        return self.wants

    def decide(self, incoming: IncomingRequest) -> Decision | Awaitable[Decision]:
        self.asked.append(incoming)
        return self.decision


def kinds(replies: Sequence[Reply]) -> list[str]:
    return [reply.kind for reply in replies]
