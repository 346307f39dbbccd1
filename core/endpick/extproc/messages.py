"""Headers, metadata and body modes of ext_proc messages."""

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
    """Lower-case names and last values; older gateways use `value`."""
    headers = {}
    for header in header_map.headers:
        raw = header.raw_value
        headers[header.key.lower()] = raw.decode(errors="replace") if raw else header.value
    return headers


def option(name: str, value: str) -> HeaderValueOption:
    """Set one header."""
    return HeaderValueOption(header=HeaderValue(key=name, raw_value=value.encode()), append_action=_OVERWRITE)


def mutation(own: Mapping[str, str], further: Mapping[str, str], removed: Sequence[str] = ()) -> HeaderMutation:
    """Set `own` headers and the allowed `further` ones."""
    options = [option(name, value) for name, value in own.items()]
    options += [option(name.lower(), value) for name, value in further.items() if _may_change(name.lower())]
    gone = [name for name in map(str.lower, removed) if name not in further and _may_change(name)] if removed else ()
    return HeaderMutation(set_headers=options, remove_headers=gone)


def _may_change(name: str) -> bool:
    return name not in NEVER_SET and not name.startswith(":")


def destination_metadata(destination: str, further: Metadata, scores: Mapping[str, float] | None = None) -> Struct:
    """Plugins' metadata cannot replace the destination."""
    struct = as_struct(further)
    own = struct.fields[DESTINATION_NAMESPACE].struct_value.fields
    own[DESTINATION_HEADER].string_value = destination
    if scores is not None:
        own[SCORES_KEY].struct_value.Clear()
        for address, score in scores.items():
            own[SCORES_KEY].struct_value.fields[address].number_value = score
    return struct


def as_struct(metadata: Metadata) -> Struct:
    """Metadata in protobuf."""
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
_GRPC_MODE: Final = 5


@dataclass(frozen=True, slots=True)
class MessageContext:
    """`subset` None allows all."""

    modes: BodyModes = EVERYTHING_SENT
    subset: tuple[str, ...] | None = None
    served: str | None = None


NO_CONTEXT: Final = MessageContext()


def context_of(message: ProcessingRequest) -> MessageContext:
    """Raises ProtocolError for an unsupported gateway."""
    modes = body_modes_of(message)
    if not message.HasField("metadata_context"):
        return MessageContext(modes)
    served = _value(message, DESTINATION_NAMESPACE, SERVED_KEY)
    return MessageContext(modes, subset_hint(message), None if served is None else served.string_value or None)


def body_modes_of(message: ProcessingRequest) -> BodyModes:
    """Raises ProtocolError."""
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
    """Allowed endpoints; a string may hold several, separated by commas."""
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
