"""Filter and scorer pairs that compare endpoint labels: `context-length-aware` and topology affinity."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Annotated, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from endpick.api import (
    BoolArray,
    Category,
    Endpoint,
    Endpoints,
    Filter,
    FloatArray,
    InferenceRequest,
    Parameters,
    Plugin,
    PluginContext,
    RowArray,
    Scorer,
    ScoringState,
    Stability,
    Subscriptions,
)
from endpick.api.keys import PEER_ENDPOINT, TOKENIZED_PROMPT, TOPOLOGY, Topology
from endpick_builtin.label_filters import PerPool


class Distance(IntEnum):
    """The smallest place that two endpoints share, nearest first."""

    SAME_HOST = 0
    SAME_RACK = 1
    SAME_ZONE = 2
    SAME_REGION = 3
    NOTHING_SHARED = 4


class Places:
    """Places of the pool as numbers."""

    def __init__(self, topologies: Sequence[Topology | None]) -> None:
        known = [topology or Topology() for topology in topologies]
        names = ([one.hostname for one in known], [one.rack for one in known], [one.zone for one in known], [one.region for one in known])
        self._numbers = tuple(_numbered(level) for level in names)
        self._distances: dict[int, npt.NDArray[np.int8]] = {}

    def distances(self, position: int) -> npt.NDArray[np.int8]:
        """Cached: requests share few peers."""
        found = self._distances.get(position)
        if found is None:
            found = np.full(len(self._numbers[0]), Distance.NOTHING_SHARED, dtype=np.int8)
            for distance, numbers in reversed(tuple(zip(Distance, self._numbers, strict=False))):
                if numbers[position] != _UNKNOWN:
                    found[numbers == numbers[position]] = distance
            self._distances[position] = found
        return found


_UNKNOWN = 0


def _numbered(names: list[str]) -> RowArray:
    numbers = {"": _UNKNOWN}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.intp)


class TopologyParameters(Parameters):
    """The producer of topologies."""

    topology_producer_name: Annotated[
        str, Field(alias="topologyProducerName", description="Instance that provides topologies; empty for the only one.")
    ] = ""


P = TypeVar("P", bound=TopologyParameters)


class _NearPeer(Plugin[P]):
    @classmethod
    def subscriptions(cls, parameters: P) -> Subscriptions:
        return Subscriptions((), (PEER_ENDPOINT, TOPOLOGY.from_producer(parameters.topology_producer_name)))

    def __init__(self, name: str, parameters: P, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._topology = TOPOLOGY.from_producer(parameters.topology_producer_name)

    def _distances(self, endpoints: Endpoints, state: ScoringState) -> npt.NDArray[np.int8] | None:
        places = endpoints.derived_from_objects(self._topology, Places)
        peer = state.get(PEER_ENDPOINT)
        position = None if peer is None else endpoints.pool_position(peer.name)
        return None if position is None else endpoints.gather(places.distances(position))


class Level(StrEnum):
    """The place to share with the peer."""

    HOST = "host"
    RACK = "rack"
    ZONE = "zone"
    REGION = "region"


_REACH = {
    Level.HOST: Distance.SAME_HOST,
    Level.RACK: Distance.SAME_RACK,
    Level.ZONE: Distance.SAME_ZONE,
    Level.REGION: Distance.SAME_REGION,
}


class TopologyFilterParameters(TopologyParameters):
    """The required proximity."""

    min_affinity: Annotated[
        Level,
        Field(
            alias="minAffinity", description="Largest place that an endpoint must share with the peer: `host`, `rack`, `zone` or `region`."
        ),
    ] = Level.HOST


class TopologyAffinityFilter(_NearPeer[TopologyFilterParameters], Filter[TopologyFilterParameters]):
    """Keeps endpoints that share `minAffinity`, or a smaller place, with the endpoint of an earlier stage of the request.

    Unknown places are not shared. All are kept without such a peer, if its place is unknown, or if none is near enough.
    """

    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: TopologyFilterParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._reach = _REACH[parameters.min_affinity]

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> BoolArray | Endpoints:
        distances = self._distances(endpoints, state)
        if distances is None:
            return endpoints
        near: BoolArray = distances <= self._reach
        return near if np.count_nonzero(near) else endpoints


_SCORES = np.zeros(len(Distance))
_SCORES[[Distance.SAME_HOST, Distance.SAME_RACK, Distance.SAME_ZONE, Distance.SAME_REGION]] = 1.0, 0.20, 0.05, 0.02


class TopologyAffinityScorer(_NearPeer[TopologyParameters], Scorer[TopologyParameters]):
    """Prefers endpoints near that of an earlier stage of the request.

    score = 1 on its host, 0.2 in its rack, 0.05 in its zone, 0.02 in its region; else 0, also without a peer.
    """

    category = Category.AFFINITY
    stability = Stability.EXPERIMENTAL

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        distances = self._distances(endpoints, state)
        return np.zeros(len(endpoints)) if distances is None else _SCORES[distances]


UNLABELLED = 0.5
IN_RANGE = 0.3
NARROWNESS, ROOM = 0.7, 0.3
WIDTH_SCALE, DISTANCE_SCALE = 10_000.0, 1_000.0
_RANGE = re.compile(r"\s*(\+?\d{1,15})\s*-\s*(\+?\d{1,15})\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of the whole pool; NaN if missing or invalid."""

    shortest: FloatArray
    longest: FloatArray
    unlabelled: BoolArray


def range_of(text: str) -> tuple[int, int] | None:
    """Both ends of `0-8192`; None if invalid."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return None
    shortest, longest = int(match[1]), int(match[2])
    return (shortest, longest) if shortest <= longest else None


class ContextLengthParameters(Parameters):
    """The label, and whether it is binding."""

    label: Annotated[str, Field(min_length=1, description="Label with the range of tokens an endpoint is meant for, such as `0-8192`.")] = (
        "llm-d.ai/context-length-range"
    )
    enable_filtering: Annotated[
        bool,
        Field(
            alias="enableFiltering",
            description="Drop endpoints with an invalid range or one that excludes the prompt. Those without a range stay.",
            examples=[True],
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
