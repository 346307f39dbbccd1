"""Requests that only want to be served where their prompt is cached: `Prefer: if-available`."""

from __future__ import annotations

from collections.abc import Mapping

from endpick.api.keys import PREFIX_MATCH_BLOCKS
from endpick.api.scheduling import SchedulingResult
from endpick.api.state import CycleState

IF_AVAILABLE = "if-available"


def wants_cached_only(headers: Mapping[str, str]) -> bool:
    """Whether the client would rather have a 412 than wait for a prefill."""
    preference = headers.get("prefer")
    return preference is not None and IF_AVAILABLE in (token.strip().lower() for token in preference.split(","))


def was_cached(result: SchedulingResult, state: CycleState) -> bool:
    """Whether the first endpoint picked probably holds the beginning of the prompt; False when nobody keeps track."""
    picked = result.runs[result.primary].picked
    return picked is not None and bool(state.column(PREFIX_MATCH_BLOCKS, picked)[0] > 0)
