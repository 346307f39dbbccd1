"""Headers of the request path: the names llm-d gave them, old and new, and what plugins may set."""

from __future__ import annotations

from collections.abc import Mapping

from endpick.api.checks import check_headers

REQUEST_ID = "x-request-id"
FAIRNESS_ID = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
OBJECTIVE = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
MODEL_REWRITE = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
PATH = (":path", "x-original-path", "x-forwarded-path")
"""Where the path of the request is found; the first that is present counts."""

OWNED = frozenset(
    (
        *FAIRNESS_ID,
        *OBJECTIVE,
        *MODEL_REWRITE,
        "x-gateway-destination-endpoint",
        "x-gateway-destination-endpoint-served",
        "x-gateway-destination-endpoint-subset",
        "content-length",
    )
)
"""Set by the client to control the picker, or by the picker itself: nothing that a plugin may set for the model server."""


def first_of(headers: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """The value of the first of these headers that is there and not empty."""
    for name in names:
        value = headers.get(name)
        if value:
            return value
    return None


class HeadersForUpstream:
    """The `UpstreamHeaders` of one request."""

    __slots__ = ("values",)

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = {name.lower(): value for name, value in values.items() if name.lower() not in OWNED}

    def set(self, name: str, value: str) -> None:
        """See `UpstreamHeaders.set`."""
        check_headers(((name, value),))
        lowered = name.lower()
        if lowered in OWNED or lowered.startswith(":"):
            raise ValueError(f"header '{lowered}' belongs to endpick and cannot be set by a plugin")
        self.values[lowered] = value
