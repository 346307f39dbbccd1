"""Fast path for pieces of a streamed response body: the reply is derived from the DATA payload without parsing it.

A model server streams its response in dozens of pieces, and nearly all pass unchanged. The bytes around such a piece, in the message and
in its reply, depend on the length of the payload only, so they are computed once per length. A payload that differs takes the usual path,
with the same result.
"""

from __future__ import annotations

from typing import Final

from endpick.extproc.replies import passage
from endpick.transport.h2.frames import DATA, FRAME_HEAD
from endpick.transport.h2.grpc import MESSAGE_HEAD, MESSAGE_HEAD_BYTES

MAX_PAYLOAD_BYTES: Final = 4096
"""Longer payloads are rare and take the usual path."""


class Passage:
    """The bytes around a piece in DATA payloads of one length."""

    def __init__(self, payload_bytes: int) -> None:
        before, before_bytes, instead = passage(payload_bytes - MESSAGE_HEAD_BYTES)
        message_bytes = len(instead) + payload_bytes - MESSAGE_HEAD_BYTES - before_bytes
        self.before = MESSAGE_HEAD.pack(0, payload_bytes - MESSAGE_HEAD_BYTES) + before
        self.before_bytes = len(self.before)
        self.size = MESSAGE_HEAD_BYTES + message_bytes if instead else 0
        """Payload size of the reply; 0 if no piece has this length."""
        self.frame_head = FRAME_HEAD.pack(self.size >> 8, self.size & 0xFF, DATA, 0, 0)[:5]
        self.instead = MESSAGE_HEAD.pack(0, message_bytes) + instead


_PASSAGES: Final[list[Passage | None]] = [None] * (MAX_PAYLOAD_BYTES + 1)


def passage_of(payload_bytes: int) -> Passage:
    """The passage for payloads of this length, at most `MAX_PAYLOAD_BYTES`."""
    found = _PASSAGES[payload_bytes]
    if found is None:
        found = _PASSAGES[payload_bytes] = Passage(payload_bytes)
    return found
