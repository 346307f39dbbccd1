"""Until the transport drops them: names it still imports."""

from __future__ import annotations


class EnvelopeError(Exception):
    """Never raised."""


class EnvelopeCheck:
    """Checks nothing."""

    def __init__(self, body_fields: frozenset[int], max_bytes: int) -> None:
        self._received = bytearray()

    def add(self, data: bytes, start: int, stop: int) -> None:
        """Take the next bytes of the message."""
        self._received += memoryview(data)[start:stop]


class LongMessageReader(EnvelopeCheck):
    """Collects a message."""

    def message(self) -> bytes:
        """The message, all of which has come."""
        return bytes(self._received)
