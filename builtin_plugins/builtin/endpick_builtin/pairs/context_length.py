"""`context-length-aware`: prefers endpoints labelled for prompts of this length."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from endpick.api import (
    BoolArray,
    Category,
    Endpoint,
    Endpoints,
    Filter,
    FloatArray,
    InferenceRequest,
    PluginContext,
    Scorer,
    ScoringState,
)
from endpick.api.keys import TOKENIZED_PROMPT
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.label_filters import PerPool

UNLABELLED = 0.5
IN_RANGE = 0.3
NARROWNESS, ROOM = 0.7, 0.3
WIDTH_SCALE, DISTANCE_SCALE = 10_000.0, 1_000.0
_RANGE = re.compile(r"\s*(\+?\d{1,15})\s*-\s*(\+?\d{1,15})\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Ranges:
    """The ranges of the whole pool; NaN if missing or invalid."""

    shortest: FloatArray
    longest: FloatArray
    unlabelled: BoolArray


def range_of(text: str) -> tuple[int, int] | None:
    """Return both ends of a range such as `0-8192`; None if it is invalid."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    shortest, longest = int(match[1]), int(match[2])
    return (shortest, longest) if shortest <= longest else None


class ContextLengthParameters(CamelParameters):
    """The label, and whether it is binding."""

    label: Annotated[str, Field(min_length=1, description="Label with the range of tokens an endpoint is meant for, such as `0-8192`.")] = (
        "llm-d.ai/context-length-range"
    )
    enable_filtering: Annotated[
        bool,
        Field(
            description="Drop endpoints with an invalid range or one that excludes the prompt. Those without a range stay.", examples=[True]
        ),
    ] = False


class ContextLengthAware(Filter[ContextLengthParameters], Scorer[ContextLengthParameters]):
    """Prefers endpoints meant for prompts of this length, narrowest range first.

    For L tokens (0 if unknown), label `min-max` and width = max - min: inside, score = 0.3 + 0.7 * (0.7 / (1 + width / 10000) + 0.3 * (max
    - L) / width), 1 if width is 0; outside, score = 0.3 / (1 + distance to the range / 1000). It is 0.5 without the label, 0 for an invalid
    one. With `enableFiltering` the filter drops endpoints out of range, possibly all.
    """

    consumes = (TOKENIZED_PROMPT,)
    category = Category.AFFINITY

    def __init__(self, name: str, parameters: ContextLengthParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._ranges = PerPool(self._read)

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> BoolArray | Endpoints:
        if not self.parameters.enable_filtering:
            return endpoints
        ranges, length = self._ranges.of(endpoints), _length(state)
        return endpoints.gather(ranges.unlabelled | ((ranges.shortest <= length) & (length <= ranges.longest)))

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        return endpoints.gather(_scores(self._ranges.of(endpoints), _length(state)))

    def _read(self, pool: tuple[Endpoint, ...]) -> Ranges:
        texts = [endpoint.labels.get(self.parameters.label) for endpoint in pool]
        ranges = [(None if text is None else range_of(text)) or (np.nan, np.nan) for text in texts]
        ends = np.array(ranges, dtype=np.float64).reshape(-1, 2)
        return Ranges(ends[:, 0], ends[:, 1], np.array([text is None for text in texts], dtype=np.bool_))


def _length(state: ScoringState) -> int:
    return sum(len(prompt.token_ids) for prompt in state.get(TOKENIZED_PROMPT) or ())


def _scores(ranges: Ranges, length: int) -> FloatArray:
    width = ranges.longest - ranges.shortest
    room = (ranges.longest - length) / np.where(width > 0.0, width, 1.0)
    inside = IN_RANGE + (1.0 - IN_RANGE) * (NARROWNESS / (1.0 + width / WIDTH_SCALE) + ROOM * room)
    inside[width == 0.0] = 1.0
    distance = np.fmax(ranges.shortest - length, length - ranges.longest)  # at most 0 inside, NaN without a range
    scores = np.where(distance <= 0.0, inside, IN_RANGE / (1.0 + np.fmax(distance, 0.0) / DISTANCE_SCALE))
    scores[np.isnan(distance)] = 0.0
    scores[ranges.unlabelled] = UNLABELLED
    return scores
