"""Converts headers and metadata between protobuf and plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from google.protobuf.struct_pb2 import Struct

from endpick._proto.ext_proc_pb2 import HeaderMap, HeaderMutation, HeaderValue, HeaderValueOption
from endpick.api.request_control import Metadata

DESTINATION_HEADER: Final = "x-gateway-destination-endpoint"
DESTINATION_NAMESPACE: Final = "envoy.lb"
SERVED_KEY: Final = "x-gateway-destination-endpoint-served"
"""The endpoint that the gateway used."""
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
)
"""Repeating `transfer-encoding` has truncated responses."""
NEVER_SET: Final = HOP_BY_HOP | {DESTINATION_HEADER, SERVED_KEY, SUBSET_KEY, "content-length"}

_OVERWRITE: Final = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD

MAX_NAMES: Final = 1024
MAX_NAME_LENGTH: Final = 64
"""Names are cached; clients choose them, so the cache is bounded."""
_names: Final[dict[str, str]] = {}


def _lower(name: str) -> str:
    lowered = name.lower()
    if len(_names) < MAX_NAMES and len(name) <= MAX_NAME_LENGTH:
        _names[name] = lowered
    return lowered


def read_headers(header_map: HeaderMap) -> dict[str, str]:
    """Lower-case names and last values; older gateways use `value`."""
    headers = {}
    for header in header_map.headers:
        raw = header.raw_value
        headers[_names.get(key := header.key) or _lower(key)] = raw.decode(errors="replace") if raw else header.value
    return headers


def option(name: str, value: str) -> HeaderValueOption:
    """Set one header."""
    return HeaderValueOption(header=HeaderValue(key=name, raw_value=value.encode()), append_action=_OVERWRITE)


def mutation(own: Mapping[str, str], further: Mapping[str, str], removed: Sequence[str] = ()) -> HeaderMutation:
    """Set `own` headers and the allowed `further` ones, and remove others."""
    options = [option(name, value) for name, value in own.items()]
    options += [option(name.lower(), value) for name, value in further.items() if _may_change(name.lower())]
    gone = [name for name in map(str.lower, removed) if name not in further and _may_change(name)] if removed else ()
    return HeaderMutation(set_headers=options, remove_headers=gone)


def _may_change(name: str) -> bool:
    return name not in NEVER_SET and not name.startswith(":")


def destination_metadata(destination: str, further: Metadata, scores: Mapping[str, float] | None = None) -> Struct:
    """The destination and the plugins' metadata, which cannot replace it."""
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
