"""gRPC frames, and messages with some declared fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import TypeVar

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from endpick.api import Rejection

HEAD_BYTES = 5  # compressed flag and length
MAX_BODY_BYTES = 16 * 1024 * 1024  # small fields grow a hundredfold when parsed

Declared = Mapping[str, Mapping[str, tuple[int, str]]]  # number and type of fields by message; `*` for a list

_TYPES = {
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "string": FieldDescriptorProto.TYPE_STRING,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "fixed64": FieldDescriptorProto.TYPE_FIXED64,
    "sfixed64": FieldDescriptorProto.TYPE_SFIXED64,
}


def messages_of(package: str, declared: Declared) -> dict[str, type[Message]]:
    """Message classes; unknown fields are skipped."""
    file = FileDescriptorProto(name=f"endpick/{package}.proto", package=package, syntax="proto3")
    for name, fields in declared.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            bare = kind.removesuffix("*")
            label = FieldDescriptorProto.LABEL_REPEATED if kind.endswith("*") else FieldDescriptorProto.LABEL_OPTIONAL
            one = message.field.add(name=field, number=number, label=label)
            if bare in _TYPES:
                one.type = _TYPES[bare]
            else:
                one.type, one.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{package}.{bare}"
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in declared}


Read = TypeVar("Read", bound=Message)


def request_in(body: bytes, kind: type[Read]) -> Read | Rejection:
    """The message of a request."""
    if len(body) > MAX_BODY_BYTES:
        return Rejection(f"the gRPC request body is larger than {MAX_BODY_BYTES} bytes", status=413)
    problem = _problem_with(body)
    if problem is not None:
        return Rejection(f"invalid or unsupported gRPC payload: {problem}", status=400)
    try:
        return kind.FromString(body[HEAD_BYTES : HEAD_BYTES + _length_of(body)])
    except DecodeError as failure:
        return Rejection(f"invalid or unsupported gRPC payload: {failure}", status=400)


def _problem_with(body: bytes) -> str | None:
    if len(body) < HEAD_BYTES:
        return f"invalid gRPC frame: expected at least {HEAD_BYTES} bytes for header, got {len(body)}"
    if body[0]:
        return "compressed gRPC payload is not supported"
    length, there = _length_of(body), len(body) - HEAD_BYTES
    if length > there:
        return f"incomplete gRPC payload: header indicates {length} bytes, but only {there} bytes are available"
    return None


def _length_of(frame: bytes) -> int:
    return int.from_bytes(frame[1:HEAD_BYTES], "big")


def answers_in(frames: bytes, kind: type[Read]) -> Iterator[Read]:
    """The readable messages of a response."""
    start = 0
    while start + HEAD_BYTES <= len(frames):
        begin = start + HEAD_BYTES
        end = begin + _length_of(frames[start:begin])
        if not frames[start] and end <= len(frames):
            with suppress(DecodeError):
                yield kind.FromString(frames[begin:end])
        start = end


def framed(message: bytes) -> bytes:
    """A message in its frame, uncompressed."""
    return b"\0" + len(message).to_bytes(HEAD_BYTES - 1, "big") + message


@cache
def http_bodies() -> tuple[type[Message], type[Message]]:
    """`google.api.HttpBody`, and a request with one as its second field."""
    made = messages_of(
        "google.api",
        {"HttpBody": {"content_type": (1, "string"), "data": (2, "bytes")}, "Request": {"http_body": (2, "HttpBody")}},
    )
    return made["HttpBody"], made["Request"]
