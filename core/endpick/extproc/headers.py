"""Headers and metadata: what the gateway's say, and which of them a reply sets."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from typing import Final

from google.protobuf.struct_pb2 import Struct, Value

from endpick._proto.ext_proc_pb2 import HeaderMap, HeaderMutation, HeaderValue, HeaderValueOption, ProcessingRequest
from endpick.api.request import shown
from endpick.api.request_control import Metadata
from endpick.extproc.stream import GrpcStatus, ProtocolError
from endpick.host.throttle import LineBudget, Throttle

DESTINATION_HEADER: Final = "x-gateway-destination-endpoint"
"""Also the key below `DESTINATION_NAMESPACE`; both carry the same value."""
DESTINATION_NAMESPACE: Final = "envoy.lb"
SERVED_KEY: Final = "x-gateway-destination-endpoint-served"
"""Below `DESTINATION_NAMESPACE` in the response phase: the endpoint the gateway used in the end."""
SCORES_KEY: Final = "x-gateway-destination-endpoint-scores"
"""Below `DESTINATION_NAMESPACE`, on request: what each candidate scored, by its address."""
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
SUBSET_KEY: Final = "x-gateway-destination-endpoint-subset"
DROPPED_REASON_HEADER: Final = "x-llm-d-request-dropped-reason"


logger = logging.getLogger(__name__)

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
"""Belong to one connection: repeating `transfer-encoding` on the next has truncated streamed responses."""

OURS: Final = frozenset({DESTINATION_HEADER, SERVED_KEY, SUBSET_KEY, "content-length"})
"""Only the session or the gateway sets them."""

_NEVER_SET: Final = HOP_BY_HOP | OURS
_NAME: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_NOT_IN_A_VALUE: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

_OVERWRITE: Final = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


MOST_HEADERS: Final = 32_768
"""Of one message. Protobuf makes objects of each: of those in 256 KiB of empty ones it takes 47 ms."""
MOST_NAMES: Final = 1024
LONGEST_NAME: Final = 64
_names: Final[dict[str, str]] = {}
"""Names of headers in lower case, by how gateways write them: one string for all requests, of which thousands may wait."""


def _lower(name: str) -> str:
    lowered = name.lower()
    if len(_names) < MOST_NAMES and len(name) <= LONGEST_NAME:
        _names[name] = lowered
    return lowered


def read_headers(header_map: HeaderMap) -> dict[str, str]:
    """Lower-case names and their values; of a repeated header the last value.

    Gateways put a value into `raw_value` or, older ones, into `value`.

    Raises:
        ProtocolError: there are more than `MOST_HEADERS`.
    """
    if len(header_map.headers) > MOST_HEADERS:
        raise ProtocolError(GrpcStatus.INVALID_ARGUMENT, f"a message with more than {MOST_HEADERS} headers")
    headers = {}
    try:
        for header in header_map.headers:
            headers[_names.get(key := header.key) or _lower(key)] = raw.decode() if (raw := header.raw_value) else header.value
    except UnicodeDecodeError:
        # Rare, and saying so for every value costs 0.2 µs each.
        return {header.key.lower(): header.raw_value.decode(errors="replace") or header.value for header in header_map.headers}
    return headers


def option(name: str, value: str) -> HeaderValueOption:
    """The instruction to set one header, whatever it was before."""
    return HeaderValueOption(header=HeaderValue(key=name, raw_value=value.encode()), append_action=_OVERWRITE)


def mutation(own: Mapping[str, str], further: Mapping[str, str], removed: Sequence[str] = ()) -> HeaderMutation:
    """Set our `own` headers, and those of `further` that may be set, and remove those of `removed` that are not set.

    A header that the gateway would refuse fails the whole request, so a plugin's bad header is left out and logged.
    """
    options = [option(name, value) for name, value in own.items()]
    options += [option(name.lower(), value) for name, value in further.items() if may_set(name, value)]
    gone = [name for name in map(str.lower, removed) if name not in further and may_set(name, "")] if removed else ()
    return HeaderMutation(set_headers=options, remove_headers=gone)


def may_set(name: str, value: str) -> bool:
    """Whether a plugin's header is one, and the plugin's to set."""
    lowered = name.lower()
    if lowered in _NEVER_SET:
        return False
    if _NAME.fullmatch(lowered) and not _NOT_IN_A_VALUE.search(value):
        return True
    _tell_of(lowered, value)
    return False


_TOLD_SECONDS: Final = 30.0
_told: Final = Throttle(time.monotonic, _TOLD_SECONDS)
_lines: Final = LineBudget(time.monotonic, _TOLD_SECONDS)


def _tell_of(name: str, value: str) -> None:
    """Log that a header was not set: of each name once in a while, and of no more names than a reader could read of."""
    suppressed = None if _lines.is_spent("") else _told.admit(name[:LONGEST_NAME])
    if suppressed is not None:
        _lines.spend("")
        text = "header %s was not set: its name or its value %s is not valid in HTTP"
        logger.warning(text, shown(name), shown(value), extra={"suppressed": suppressed})


def subset_hint(message: ProcessingRequest) -> tuple[str, ...] | None:
    """The endpoints the gateway allows, in its order; None when it does not restrict them.

    Asked of a message that has a `metadata_context`. The value is a list of addresses or one string; each string may itself
    hold several, separated by commas.
    """
    hint = _value(message, SUBSET_NAMESPACE, SUBSET_KEY)
    kind = hint.WhichOneof("kind") if hint is not None else None
    if hint is None or kind not in ("list_value", "string_value"):
        return None
    values = hint.list_value.values if kind == "list_value" else (hint,)
    texts = [value.string_value for value in values]
    entries = (entry.strip() for text in texts for entry in text.split(","))
    return tuple(entry for entry in entries if entry)


def served_endpoint(message: ProcessingRequest) -> str | None:
    """The endpoint that the gateway says has served the request. Asked of a message that has a `metadata_context`."""
    value = _value(message, DESTINATION_NAMESPACE, SERVED_KEY)
    return (value.string_value or None) if value is not None else None


def destination_metadata(destination: str, further: Metadata, scores: Mapping[str, float] | None = None) -> Struct:
    """The destination where the protocol wants it, and what plugins add, of which nothing replaces the destination or the scores."""
    struct = as_struct(further)
    own = struct.fields[DESTINATION_NAMESPACE].struct_value.fields
    own[DESTINATION_HEADER].string_value = destination
    if scores is not None:
        own[SCORES_KEY].struct_value.Clear()
        for address, score in scores.items():
            own[SCORES_KEY].struct_value.fields[address].number_value = score
    return struct


def as_struct(metadata: Metadata) -> Struct:
    """The protobuf form."""
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


def _value(message: ProcessingRequest, namespace: str, key: str) -> Value | None:
    struct = message.metadata_context.filter_metadata.get(namespace)
    return None if struct is None else struct.fields.get(key)
