"""Body modes, subset hint and served endpoint of a message."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from google.protobuf.struct_pb2 import Value

from endpick._proto.ext_proc_pb2 import ProcessingRequest
from endpick.extproc.headers import DESTINATION_NAMESPACE, SERVED_KEY, SUBSET_KEY, SUBSET_NAMESPACE
from endpick.extproc.stream import GrpcStatus, ProtocolError
from endpick.requests.model import EVERYTHING_SENT, BodyMode, BodyModes

ONE_MESSAGE_MODES: Final = frozenset({BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL})
_GRPC_MODE: Final = 5


@dataclass(frozen=True, slots=True)
class MessageContext:
    """The context of a message; `subset` None is no restriction."""

    modes: BodyModes = EVERYTHING_SENT
    subset: tuple[str, ...] | None = None
    served: str | None = None


NO_CONTEXT: Final = MessageContext()


def context_of(message: ProcessingRequest) -> MessageContext:
    """Read the context. Raises ProtocolError for an unsupported gateway."""
    modes = body_modes_of(message)
    if not message.HasField("metadata_context"):
        return MessageContext(modes)
    served = _value(message, DESTINATION_NAMESPACE, SERVED_KEY)
    return MessageContext(modes, subset_hint(message), None if served is None else served.string_value or None)


def body_modes_of(message: ProcessingRequest) -> BodyModes:
    """The body modes; the default is FULL_DUPLEX_STREAMED. Raises ProtocolError."""
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
    """The allowed endpoints; strings may hold several, separated by commas."""
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
