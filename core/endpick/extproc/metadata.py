"""Metadata beside the messages: what the gateway tells us, and how we tell it a destination."""

from __future__ import annotations

from google.protobuf.struct_pb2 import Struct, Value

from endpick._proto.ext_proc_pb2 import ProcessingRequest
from endpick.extproc.names import (
    DESTINATION_HEADER,
    DESTINATION_NAMESPACE,
    SERVED_KEY,
    SUBSET_KEY,
    SUBSET_NAMESPACE,
)
from endpick.requests.decision import Metadata


def subset_hint(message: ProcessingRequest) -> tuple[str, ...] | None:
    """The endpoints the gateway allows, in its order; None when it does not restrict them.

    The value is a list of addresses or one string; each string may itself hold several, separated by commas.
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
    """The endpoint that the gateway says has served the request."""
    value = _value(message, DESTINATION_NAMESPACE, SERVED_KEY)
    return (value.string_value or None) if value is not None else None


def destination_metadata(destination: str, further: Metadata) -> Struct:
    """The destination where the protocol wants it, and what plugins add, of which nothing replaces the destination."""
    struct = as_struct(further)
    struct.fields[DESTINATION_NAMESPACE].struct_value.fields[DESTINATION_HEADER].string_value = destination
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
    if not message.HasField("metadata_context"):
        return None
    struct = message.metadata_context.filter_metadata.get(namespace)
    return None if struct is None else struct.fields.get(key)
