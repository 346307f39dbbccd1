"""Headers, bodies, metadata and modes of ext_proc messages; headers and bodies without protobuf, which creates four objects per header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from google.protobuf.struct_pb2 import Struct, Value

from endpick._proto.ext_proc_pb2 import HeaderMap, HeaderMutation, HeaderValue, HeaderValueOption, ProcessingRequest
from endpick.api.request_control import Metadata
from endpick.extproc.stream import GrpcStatus, ProtocolError
from endpick.requests.model import EVERYTHING_SENT, BodyMode, BodyModes

DESTINATION_HEADER: Final = "x-gateway-destination-endpoint"
DESTINATION_NAMESPACE: Final = "envoy.lb"
SERVED_KEY: Final = "x-gateway-destination-endpoint-served"  # the endpoint that the gateway used
SCORES_KEY: Final = "x-gateway-destination-endpoint-scores"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
SUBSET_KEY: Final = "x-gateway-destination-endpoint-subset"
DROPPED_REASON_HEADER: Final = "x-llm-d-request-dropped-reason"

HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)  # repeating `transfer-encoding` has truncated responses
NEVER_SET: Final = HOP_BY_HOP | {DESTINATION_HEADER, SERVED_KEY, SUBSET_KEY, "content-length"}

_OVERWRITE: Final = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def read_headers(header_map: HeaderMap) -> dict[str, str]:
    """Return the last value of each header by lower-case name; older gateways set `value`."""
    headers = {}
    for header in header_map.headers:
        raw = header.raw_value
        headers[header.key.lower()] = raw.decode(errors="replace") if raw else header.value
    return headers


def option(name: str, value: str) -> HeaderValueOption:
    """Build the instruction to set or overwrite one header."""
    return HeaderValueOption(header=HeaderValue(key=name, raw_value=value.encode()), append_action=_OVERWRITE)


def mutation(own: Mapping[str, str], further: Mapping[str, str], removed: Sequence[str] = ()) -> HeaderMutation:
    """Build the mutation that sets `own` and allowed `further` headers, and removes others."""
    options = [option(name, value) for name, value in own.items()]
    options += [option(name.lower(), value) for name, value in further.items() if _may_change(name.lower())]
    removals = [name for name in map(str.lower, removed) if name not in further and _may_change(name)] if removed else ()
    return HeaderMutation(set_headers=options, remove_headers=removals)


def _may_change(name: str) -> bool:
    return name not in NEVER_SET and not name.startswith(":")


def destination_metadata(destination: str, further: Metadata, scores: Mapping[str, float] | None = None) -> Struct:
    """Build dynamic metadata with the destination, which plugins cannot replace."""
    struct = as_struct(further)
    own = struct.fields[DESTINATION_NAMESPACE].struct_value.fields
    own[DESTINATION_HEADER].string_value = destination
    if scores is not None:
        own[SCORES_KEY].struct_value.Clear()
        for address, score in scores.items():
            own[SCORES_KEY].struct_value.fields[address].number_value = score
    return struct


def as_struct(metadata: Metadata) -> Struct:
    """Convert metadata by namespace and key to protobuf."""
    struct = Struct()
    for namespace, entries in metadata.items():
        fields = struct.fields[namespace].struct_value.fields
        for key, entry in entries.items():
            if isinstance(entry, bool):
                fields[key].bool_value = entry
            elif isinstance(entry, str):
                fields[key].string_value = entry
            else:
                fields[key].number_value = entry
    return struct


ONE_MESSAGE_MODES: Final = frozenset({BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL})
STREAMING_MODES: Final = frozenset({BodyMode.STREAMED, BodyMode.FULL_DUPLEX_STREAMED})
_GRPC_MODE: Final = 5


@dataclass(frozen=True, slots=True)
class MessageContext:
    """The context of a message: `subset` None allows all endpoints; see also `Exchange.response_headers`."""

    modes: BodyModes = EVERYTHING_SENT
    subset: tuple[str, ...] | None = None
    served: str | None = None
    gateway_error: str | None = None


NO_CONTEXT: Final = MessageContext()

_ATTRIBUTES: Final = "envoy.filters.http.ext_proc"  # the namespace of `response_attributes`
UPSTREAM_ADDRESS: Final = "upstream.address"  # the last one tried
CODE_DETAILS: Final = "response.code_details"
_VIA_UPSTREAM: Final = "via_upstream"  # the model server answered


def context_of(message: ProcessingRequest) -> MessageContext:
    """Read the context of a message; raises ProtocolError for an unsupported gateway."""
    modes = body_modes_of(message)
    subset, served = None, None
    if message.HasField("metadata_context"):
        subset, reported = subset_hint(message), _value(message, DESTINATION_NAMESPACE, SERVED_KEY)
        served = None if reported is None else reported.string_value or None
    attributes = message.attributes.get(_ATTRIBUTES)
    if attributes is None:
        return MessageContext(modes, subset, served)
    served = served or attributes.fields[UPSTREAM_ADDRESS].string_value or None
    details = attributes.fields[CODE_DETAILS].string_value
    return MessageContext(modes, subset, served, "" if details == _VIA_UPSTREAM else details or None)


def body_modes_of(message: ProcessingRequest) -> BodyModes:
    """Read the body modes that the gateway announces; raises ProtocolError if unsupported."""
    if message.observability_mode:
        raise ProtocolError(
            GrpcStatus.FAILED_PRECONDITION,
            "the gateway's ext_proc filter runs in observability mode and ignores replies; "
            "set observability_mode: false to have requests routed",
        )
    if not message.HasField("protocol_config"):
        return EVERYTHING_SENT
    config = message.protocol_config
    return _body_modes(config.request_body_mode, config.response_body_mode, config.send_body_without_waiting_for_header_response)


@lru_cache(maxsize=64)
def _body_modes(request_body: int, response_body: int, early_request_body: bool) -> BodyModes:
    return BodyModes(_mode(request_body, "request_body_mode"), _mode(response_body, "response_body_mode"), early_request_body)


def _mode(value: int, option: str) -> BodyMode:
    try:
        return BodyMode(value)
    except ValueError:
        name = "GRPC" if value == _GRPC_MODE else str(value)
        raise ProtocolError(
            GrpcStatus.FAILED_PRECONDITION,
            f"the gateway's ext_proc filter has {option} {name}, which is not supported; use FULL_DUPLEX_STREAMED",
        ) from None


def subset_hint(message: ProcessingRequest) -> tuple[str, ...] | None:
    """Return the endpoints that the gateway allows, or None for all; a string may list several."""
    hint = _value(message, SUBSET_NAMESPACE, SUBSET_KEY)
    kind = hint.WhichOneof("kind") if hint is not None else None
    if hint is None or kind not in ("list_value", "string_value"):
        return None
    values = hint.list_value.values if kind == "list_value" else (hint,)
    entries = (entry.strip() for value in values for entry in value.string_value.split(","))
    return tuple(entry for entry in entries if entry)


def _value(message: ProcessingRequest, namespace: str, key: str) -> Value | None:
    struct = message.metadata_context.filter_metadata.get(namespace)
    return None if struct is None else struct.fields.get(key)


REQUEST_HEADERS: Final = 0x12
RESPONSE_HEADERS: Final = 0x1A  # tags in `ProcessingRequest`

_HEADERS: Final = 0x0A
_HEADERS_END: Final = b"\x18\x01"  # `end_of_stream: true` of an `HttpHeaders`
_KEY: Final = 0x0A
_VALUE: Final = 0x12
_RAW_VALUE: Final = 0x1A
_LONGEST: Final = 3 + 0x3FFF  # longer lengths take three bytes
_CACHED_BYTES: Final = 512  # of a context; those of responses from one endpoint are usually equal
MAX_NAMES: Final = 1024
MAX_NAME_LENGTH: Final = 64
_names: Final[dict[bytes, str]] = {}  # bounded, because clients choose names
_message_of: Final = ProcessingRequest.FromString


def header_message(message: bytes) -> tuple[dict[str, str], bool, MessageContext] | None:
    """Parse headers, end of stream and context; returns None to leave the message to protobuf.

    Raises DecodeError or ProtocolError.
    """
    if len(message) < 4 or (message[0] != REQUEST_HEADERS and message[0] != RESPONSE_HEADERS):
        return None
    # Lengths of up to two bytes are read in place; longer ones exceed `_LONGEST`.
    headers: dict[str, str] = {}
    try:
        size = message[1]
        position = 2
        if size > 0x7F:
            size += (message[2] << 7) - 0x80
            position = 3
        stop = position + size
        size = message[position + 1]
        if message[position] != _HEADERS or stop > len(message) or stop > _LONGEST:
            return None
        position += 2
        if size > 0x7F:
            size += (message[position] << 7) - 0x80
            position += 1
        end = position + size
        if end > stop:
            return None
        while position < end:  # nearly every header has a known name and one-byte lengths
            size = message[position + 1]
            at = position + 5 + message[position + 3]
            name = _names.get(message[position + 2 : at])
            following = position + 2 + size
            if name is not None and size <= 0x7F and message[position] == _HEADERS and message[at] + at + 1 == following:
                headers[name] = message[at + 1 : following].decode()
                position = following
            else:
                header = _header(message, position)
                if header is None:
                    return None
                name, value, position = header
                headers[name] = value
    except (IndexError, UnicodeDecodeError):
        return None
    if position != end or message[end:stop] not in (b"", _HEADERS_END):
        return None
    rest = message[stop:]
    if not rest:
        return headers, end < stop, NO_CONTEXT
    context = _cached_context(rest) if len(rest) <= _CACHED_BYTES else _context(rest)
    return None if context is None else (headers, end < stop, context)


def _context(rest: bytes) -> MessageContext | None:
    message = _message_of(rest)
    return None if message.WhichOneof("request") is not None else context_of(message)


_cached_context: Final = lru_cache(maxsize=1024)(_context)


def _header(message: bytes, position: int) -> tuple[str, str, int] | None:
    size = message[position + 1]
    start = position + 2
    if size > 0x7F:
        size += (message[start] << 7) - 0x80
        start += 1
    end = start + size
    size = message[start + 1]
    at = start + 2 + size
    if message[position] != _HEADERS or message[start] != _KEY or size > 0x7F or at > end:
        return None
    if at == end:
        return message[start + 2 : at].decode().lower(), "", end
    if message[at] != _RAW_VALUE and message[at] != _VALUE:
        return None
    at += 1
    name = _names.get(message[start:at]) or _remembered(message[start:at])
    size = message[at]
    at += 1
    if size > 0x7F:
        size += (message[at] << 7) - 0x80
        at += 1
    return (name, message[at:end].decode(), end) if at + size == end else None


def _remembered(encoded: bytes) -> str:
    name = encoded[2:-1].decode().lower()
    if len(_names) < MAX_NAMES and len(name) <= MAX_NAME_LENGTH:
        _names[encoded] = name
    return name


REQUEST_BODY: Final = 0x22
RESPONSE_BODY: Final = 0x2A
REQUEST_TRAILERS: Final = 0x32  # tags in `ProcessingRequest`

_BODY_END: Final = b"\x10\x01"  # `end_of_stream: true` of an `HttpBody`
_NOTHING_BUT_THE_END: Final = b"\x02\x10\x01"


def body_piece(message: bytes) -> tuple[int, int, bool] | None:
    """Return start and stop of the body, and end of stream; None leaves the message to protobuf."""
    length = len(message)
    if length < 4 or (message[0] != RESPONSE_BODY and message[0] != REQUEST_BODY):
        return None
    more, last = _heads(message[0], length)
    if message.startswith(more):
        return len(more), length, False
    if message.startswith(last) and message.endswith(_BODY_END):
        return len(last), length - len(_BODY_END), True
    return (length, length, True) if message[1:] == _NOTHING_BUT_THE_END else None


def response_piece_head(length: int) -> bytes:
    """Return the bytes before the chunk in a response message of this length, or `NO_HEAD`."""
    return _heads(RESPONSE_BODY, length)[0]


@lru_cache(maxsize=8192)
def _heads(tag: int, length: int) -> tuple[bytes, bytes]:
    return _head(tag, length - 1, 0), _head(tag, length - 1, len(_BODY_END))


def _head(tag: int, rest: int, after: int) -> bytes:
    """`rest` bytes follow the tag, `after` bytes the body."""
    whole = _announced(rest)
    size = _announced(whole - 1 - after)
    return bytes((tag,)) + varint(whole) + b"\x0a" + varint(size) if size > 0 else NO_HEAD


NO_HEAD: Final = b"\x00"


def _announced(total: int) -> int:
    """The length that takes `total` bytes including its varint; -1 if none."""
    for size in range(1, 6):
        if total > size and len(varint(total - size)) == size:
            return total - size
    return -1


def varint(number: int) -> bytes:
    """Encode a non-negative number as a protobuf varint."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
