"""`topology-affinity-filter` and `topology-affinity-scorer`: prefer endpoints near an earlier stage's."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import Annotated, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field

from endpick.api import (
    BoolArray,
    Category,
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
from endpick.api.keys import PEER_ENDPOINT, TOPOLOGY, Topology


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
