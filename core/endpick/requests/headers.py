"""Request headers that endpick reads, and headers that plugins set for the model server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import uuid4

from endpick.api.request import check_headers, shown
from endpick.api.request_control import MetadataValue

REQUEST_ID: Final = "x-request-id"
FAIRNESS_ID: Final = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
OBJECTIVE: Final = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
MODEL_REWRITE: Final = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
CONTROLS: Final = frozenset((*FAIRNESS_ID, *OBJECTIVE, *MODEL_REWRITE))
DEFAULT_FAIRNESS_ID: Final = "default-flow"
OWNED: Final = CONTROLS | {
    "x-gateway-destination-endpoint",
    "x-gateway-destination-endpoint-served",
    "x-gateway-destination-endpoint-subset",
    "content-length",
}


def first_of(headers: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """Return the first non-empty value among these headers, or None."""
    for name in names:
        value = headers.get(name)
        if value:
            return value
    return None


def new_id() -> str:
    """Return a random UUID for a request without `x-request-id`."""
    return str(uuid4())


class HeadersForUpstream:
    """Collects the headers and metadata that plugins set for the model server."""

    __slots__ = ("_metadata", "_removed", "_values")

    def __init__(self, values: Mapping[str, str], removed: tuple[str, ...] = ()) -> None:
        self._removed = removed
        self._values = {name.lower(): value for name, value in values.items() if name.lower() not in OWNED} if values else {}
        self._metadata: dict[str, dict[str, MetadataValue]] = {}

    def set_metadata(self, namespace: object, key: object, value: object) -> None:
        if not isinstance(namespace, str) or not isinstance(key, str) or not isinstance(value, str | float | int):
            raise TypeError(f"metadata {shown(namespace)}, {shown(key)} is set to {shown(value)}; it takes strings, numbers and booleans")
        self._metadata.setdefault(namespace, {})[key] = value

    def set(self, name: str, value: str) -> None:
        check_headers(((name, value),))
        self._values[_allowed(name)] = value

    def remove(self, name: str) -> None:
        check_headers(((name, ""),))
        lowered = _allowed(name)
        self._values.pop(lowered, None)
        self._removed = (*self._removed, lowered)


def _allowed(name: str) -> str:
    lowered = name.lower()
    if lowered in OWNED or lowered.startswith(":"):
        raise ValueError(f"header '{lowered}' belongs to endpick and cannot be set by a plugin")
    return lowered
