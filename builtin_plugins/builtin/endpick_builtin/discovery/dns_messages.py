"""DNS messages as RFC 1035 and RFC 2782 define them: one question out, addresses and servers with their time to live in."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

_HEADER = struct.Struct("!HHHHHH")
_RECORD = struct.Struct("!HHIH")
_SRV = struct.Struct("!HHH")
_RECURSION_DESIRED = 0x0100
_IS_ANSWER, _IS_TRUNCATED = 0x8000, 0x0200
_INTERNET = 1
_LONGEST_NAME = 255
_MOST_JUMPS = 64
_RECORDS_PER_STEP = 32
"""Of one compressed name; more is a circle."""


class RecordType(IntEnum):
    """What is asked for."""

    A = 1
    CNAME = 5
    AAAA = 28
    SRV = 33


class Status(IntEnum):
    """What the server says of a question; others count as failures, too."""

    NO_ERROR = 0
    NO_SUCH_NAME = 3


class MessageError(Exception):
    """The bytes are no answer to the question."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record of an answer.

    Attributes:
        name: Of whom it speaks: lower case, without a dot at its end.
        type: As a number, also one that `RecordType` does not have.
        ttl: Seconds for which it holds.
        value: The address of A and AAAA, the name of CNAME, the target of SRV; empty for others.
        port: Of SRV.
        priority: Of SRV; lower comes first.
    """

    name: str
    type: int
    ttl: int
    value: str
    port: int = 0
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answered.

    Attributes:
        status: See `Status`; as a number, also one that it does not have.
        truncated: Whether there is more than a datagram holds.
        records: Additional ones (addresses of the targets of SRV) included.
        answers: How many of them the server says are the answer itself; those come first.
    """

    status: int
    truncated: bool
    records: tuple[Record, ...]
    answers: int = 0


def question(number: int, name: str, kind: RecordType) -> bytes:
    """A query for one name.

    Raises:
        ValueError: the name cannot be one.
    """
    labels = [label.encode("ascii") for label in name.rstrip(".").split(".")]
    if not all(0 < len(label) < 64 for label in labels) or sum(map(len, labels)) + len(labels) >= _LONGEST_NAME:
        raise ValueError(f"'{name}' is no domain name")
    encoded = b"".join(bytes((len(label),)) + label for label in labels) + b"\0"
    return _HEADER.pack(number, _RECURSION_DESIRED, 1, 0, 0, 0) + encoded + struct.pack("!HH", kind, _INTERNET)


def answers(message: bytes, asked: bytes) -> bool:
    """Whether a message answers what was asked: it repeats its number and its question. What else is in it is not looked at."""
    if message[:2] != asked[:2]:
        return False
    try:
        _, flags, questions, *_ = _HEADER.unpack_from(message)
        return bool(flags & _IS_ANSWER) and questions == 1 and _question(message, _HEADER.size)[:2] == _question(asked, _HEADER.size)[:2]
    except (struct.error, IndexError, ValueError):
        return False


def is_truncated(answer: bytes) -> bool:
    """Whether an answer to what was asked was cut, as one that does not fit a datagram is."""
    return bool(_HEADER.unpack_from(answer)[1] & _IS_TRUNCATED)


def reading(message: bytes, asked: bytes) -> Iterator[Answer | None]:
    """The answer to a question, in steps: nothing now and then, for a turn of everything else, and the answer last.

    Args:
        message: What came.
        asked: What was sent.

    Raises:
        MessageError: it is no answer to what was asked.
    """
    if not answers(message, asked):
        raise MessageError("an answer to another question")
    found: list[Record] = []
    try:
        _, flags, _, *counts = _HEADER.unpack_from(message)
        truncated = bool(flags & _IS_TRUNCATED)
        for record in () if truncated else _records(message, sum(counts)):
            found.append(record)
            if not len(found) % _RECORDS_PER_STEP:
                yield None
    except (struct.error, IndexError, ValueError) as problem:
        raise MessageError("no DNS message") from problem
    yield Answer(flags & 0xF, truncated, tuple(found), counts[0])


def _question(message: bytes, offset: int) -> tuple[str, int, int]:
    name, offset = _name(message, offset)
    kind, _ = struct.unpack_from("!HH", message, offset)
    return name, kind, offset + 4


def _records(message: bytes, count: int) -> Iterator[Record]:
    offset = _question(message, _HEADER.size)[2]
    for _ in range(count):
        name, offset = _name(message, offset)
        kind, _, ttl, length = _RECORD.unpack_from(message, offset)
        offset += _RECORD.size
        if offset + length > len(message):
            raise ValueError
        # The highest bit is no part of a time to live: RFC 2181, section 8.
        yield _record(message, offset, length, Record(name, kind, 0 if ttl >> 31 else ttl, ""))
        offset += length


def _record(message: bytes, offset: int, length: int, bare: Record) -> Record:
    data = message[offset : offset + length]
    if bare.type in (RecordType.A, RecordType.AAAA):
        if length != (4 if bare.type == RecordType.A else 16):
            raise ValueError
        return Record(bare.name, bare.type, bare.ttl, str(ipaddress.ip_address(data)))
    if bare.type == RecordType.CNAME:
        return Record(bare.name, bare.type, bare.ttl, _name(message, offset)[0])
    if bare.type == RecordType.SRV:
        priority, _, port = _SRV.unpack_from(message, offset)
        return Record(bare.name, bare.type, bare.ttl, _name(message, offset + _SRV.size)[0], port, priority)
    return bare


def _name(message: bytes, offset: int) -> tuple[str, int]:
    """A name, and where what follows it begins."""
    labels: list[str] = []
    after = -1
    jumps = length = 0
    while size := message[offset]:
        if size >= 0xC0:
            jumps += 1
            if jumps > _MOST_JUMPS:
                raise ValueError
            after = offset + 2 if after < 0 else after
            offset = (size & 0x3F) << 8 | message[offset + 1]
            continue
        length += size + 1
        if size > 63 or length > _LONGEST_NAME or offset + size >= len(message):
            raise ValueError
        labels.append(message[offset + 1 : offset + 1 + size].decode("ascii").lower())
        offset += size + 1
    return ".".join(labels), offset + 1 if after < 0 else after
