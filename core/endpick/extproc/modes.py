"""How a gateway hands over bodies: what its `protocol_config` says, and whether requests can be routed that way."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from endpick._proto.ext_proc_pb2 import ProcessingRequest
from endpick.extproc.stream import GrpcStatus, ProtocolError
from endpick.requests.model import BodyMode, BodyModes

ONE_MESSAGE_MODES: Final = frozenset({BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL})
"""Those in which a body is one message."""
_GRPC_MODE: Final = 5
_FEW_MODES: Final = 32
"""Those that may exist one day are named; any other is no mode, and would be a line of the log for each of four billion numbers."""


class LastRead:
    """The message that was read last, and what it said: a gateway's settings are one object for many requests (see `heads`)."""

    __slots__ = ("message", "modes")

    def __init__(self) -> None:
        self.message: ProcessingRequest | None = None
        self.modes = BodyModes()


last_read: Final = LastRead()


def body_modes_of(message: ProcessingRequest) -> BodyModes:
    """Read `protocol_config`; a gateway that sends none speaks the protocol's own mode, FULL_DUPLEX_STREAMED.

    Raises:
        ProtocolError: the gateway is configured in a way in which no request can be routed.
    """
    if message is last_read.message:
        return last_read.modes
    if message.observability_mode:
        raise ProtocolError(
            GrpcStatus.FAILED_PRECONDITION,
            "the gateway's ext_proc filter runs in observability mode and ignores replies; "
            "set observability_mode: false to have requests routed",
        )
    if message.HasField("protocol_config"):
        config = message.protocol_config
        modes = _body_modes(config.request_body_mode, config.response_body_mode, config.send_body_without_waiting_for_header_response)
    else:
        modes = _body_modes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED, False)
    if message.WhichOneof("request") is None:  # one with headers is long, and comes once
        last_read.message, last_read.modes = message, modes
    return modes


@lru_cache(maxsize=64)
def _body_modes(request_body: int, response_body: int, early_request_body: bool) -> BodyModes:
    return BodyModes(_mode(request_body, "request_body_mode"), _mode(response_body, "response_body_mode"), early_request_body)


def _mode(value: int, option: str) -> BodyMode:
    try:
        return BodyMode(value)
    except ValueError:
        name = "GRPC" if value == _GRPC_MODE else str(value) if 0 <= value < _FEW_MODES else "unknown"
        raise ProtocolError(
            GrpcStatus.FAILED_PRECONDITION,
            f"the gateway's ext_proc filter has {option} {name}, which is not supported; use FULL_DUPLEX_STREAMED",
        ) from None
