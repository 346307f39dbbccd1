"""What a port serves: gRPC methods by path, ext_proc's among them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from endpick._proto.ext_proc_pb2 import ProcessingRequest
from endpick.extproc.stream import SessionFactory

EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
EXT_PROC_PATH = f"/{EXT_PROC_SERVICE}/Process"


@dataclass(frozen=True, slots=True)
class Method:
    """One gRPC method, and how to open a session for a stream of it."""

    open_session: SessionFactory
    body_fields: frozenset[int] = frozenset()
    """The fields of its messages that hold a body, which may be longer than `max_envelope_bytes`, by number."""
    holds_drain: bool = True
    """False: a stream that never ends by itself (a health watch); `drain` ends it at once and does not wait for it."""


Methods = Mapping[str, Method]
"""gRPC methods by path, `/package.Service/Method`."""


_BODIES = frozenset(ProcessingRequest.DESCRIPTOR.fields_by_name[name].number for name in ("request_body", "response_body"))


def ext_proc_methods(open_session: SessionFactory) -> dict[str, Method]:
    """The ext_proc service."""
    return {EXT_PROC_PATH: Method(open_session, _BODIES)}
