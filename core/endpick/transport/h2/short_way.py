"""The short way of a streamed answer: from the frame that brings a piece to the frame that lets the piece pass, in one step.

A model streams its answer in dozens of pieces, and nearly each of them passes as it is. The long way parses a message, asks the session,
and builds a reply; but frame, message and reply of such a piece differ from those of the next in length alone. So the length of the frame's
payload says all that stands around the piece: what has to come before it in the frame, for it to be such a piece and nothing else, and what
comes before it in the reply.

A stream is on the short way while its `Stream.passing` is set, which its session does. A frame that is not exactly one such piece, or for
whose reply there is no room now, takes the long way, and the answer is the same.
"""

from __future__ import annotations

from typing import Final

from endpick.extproc.replies import passage
from endpick.transport.h2.frames import DATA, FRAME_HEAD
from endpick.transport.h2.grpc import MESSAGE_HEAD, MESSAGE_HEAD_BYTES

LONGEST_PAYLOAD_BYTES: Final = 4096
"""Longer payloads take the long way: they are few, and each length that takes the short way is remembered."""


class Passage:
    """What stands around the piece in a payload of one length."""

    __slots__ = ("before", "before_bytes", "frame_head", "instead", "size")

    def __init__(self, payload_bytes: int) -> None:
        before, before_bytes, instead = passage(payload_bytes - MESSAGE_HEAD_BYTES)
        message_bytes = len(instead) + payload_bytes - MESSAGE_HEAD_BYTES - before_bytes
        self.before = MESSAGE_HEAD.pack(0, payload_bytes - MESSAGE_HEAD_BYTES) + before
        """The head of the gRPC message and what the message begins with."""
        self.before_bytes = len(self.before)
        self.size = MESSAGE_HEAD_BYTES + message_bytes if instead else 0
        """Of the reply's payload; 0 where no payload of this length is such a piece."""
        self.frame_head = FRAME_HEAD.pack(self.size >> 8, self.size & 0xFF, DATA, 0, 0)[:5]
        """Of the reply, up to the number of the stream."""
        self.instead = MESSAGE_HEAD.pack(0, message_bytes) + instead
        """What comes before the piece in the reply's payload."""


PASSAGES: Final[list[Passage | None]] = [None] * (LONGEST_PAYLOAD_BYTES + 1)
"""By the length of the payload; None until one of that length has come."""
