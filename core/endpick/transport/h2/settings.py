"""SETTINGS (RFC 9113 §6.5): what we announce, and what the peer may."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

from endpick.transport.h2.faults import ErrorCode, H2ConnectionError
from endpick.transport.limits import Limits

__all__ = ["DEFAULT_FRAME_BYTES", "DEFAULT_WINDOW_BYTES", "MAX_WINDOW_BYTES", "Setting", "announced", "parse"]

DEFAULT_WINDOW_BYTES = 65_535
DEFAULT_FRAME_BYTES = 16_384
MAX_WINDOW_BYTES = 2**31 - 1

_MAX_FRAME_BYTES = 2**24 - 1
_SETTING = Struct(">HI")


class Setting(IntEnum):
    """The settings of RFC 9113; others are ignored."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


def announced(limits: Limits) -> dict[int, int]:
    """What a server with these limits tells its clients."""
    return {
        Setting.MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams,
        Setting.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
        Setting.MAX_FRAME_SIZE: limits.max_frame_bytes,
        Setting.MAX_HEADER_LIST_SIZE: limits.max_header_bytes,
    }


def parse(payload: bytes) -> list[tuple[int, int]]:
    """Identifier and value of each setting, unknown ones included; of one that is repeated, the last value.

    Raises:
        H2ConnectionError: the length is no multiple of six, or a value is out of its range.
    """
    if len(payload) % _SETTING.size:
        raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
    values = list(_SETTING.iter_unpack(payload))
    for setting, value in values:
        if setting == Setting.ENABLE_PUSH and value > 1:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH is {value}")
        if setting == Setting.INITIAL_WINDOW_SIZE and value > MAX_WINDOW_BYTES:
            raise H2ConnectionError(ErrorCode.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE is {value}")
        if setting == Setting.MAX_FRAME_SIZE and not DEFAULT_FRAME_BYTES <= value <= _MAX_FRAME_BYTES:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE is {value}")
    # Each change of the initial window visits every open stream, and one frame has room for ten thousand changes.
    return list(dict(values).items())
