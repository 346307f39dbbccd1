"""Topology affinity: prefers endpoints near that of an earlier stage, also one of another picker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from operator import attrgetter
from typing import Annotated, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field

from endpick.api import (
    BoolArray,
    Category,
    CycleState,
    Endpoints,
    Filter,
    FloatArray,
    InferenceRequest,
    Plugin,
    PluginContext,
    PreRequest,
    ResponseHead,
    ResponseObserver,
    RowArray,
    SchedulingResult,
    Scorer,
    ScoringState,
    Stability,
    Subscriptions,
    UpstreamHeaders,
)
from endpick.api.keys import PEER_ENDPOINT, TOPOLOGY, Topology
from endpick_builtin.camel_parameters import CamelParameters

PEER_TOPOLOGY = "x-peer-topology"


class Distance(IntEnum):
    """The smallest place that two endpoints share, nearest first."""

    SAME_HOST = 0
    SAME_RACK = 1
    SAME_ZONE = 2
    SAME_REGION = 3
    NOTHING_SHARED = 4


_LEVELS = (
    (Distance.SAME_HOST, "host", attrgetter("hostname")),
    (Distance.SAME_RACK, "rack", attrgetter("rack")),
    (Distance.SAME_ZONE, "zone", attrgetter("zone")),
    (Distance.SAME_REGION, "region", attrgetter("region")),
)
"""Distance, name in the header, and field of a `Topology`."""
_UNKNOWN = 0


def encoded(topology: Topology) -> str:
    """Format a topology for the header, `host=node12,zone=us-east1-a`, without unknown places."""
    return ",".join(f"{name}={place(topology)}" for _, name, place in _LEVELS if place(topology))


def decoded(text: str) -> Topology | None:
    """Parse the header; returns None if it names no place."""
    places = dict(pair.strip().partition("=")[::2] for pair in text.split(","))
    topology = Topology(*(places.get(name, "") for _, name, _ in _LEVELS))
    return topology if topology != Topology() else None


class Places:
    """The places of the pool's endpoints as numbers, by level."""

    def __init__(self, topologies: Sequence[Topology | None]) -> None:
        self.topologies = [topology or Topology() for topology in topologies]
        self._levels = tuple((distance, place, *_numbered(list(map(place, self.topologies)))) for distance, _, place in _LEVELS)
        self._distances: dict[tuple[int, ...], npt.NDArray[np.int8]] = {}

    def distances(self, peer: Topology) -> npt.NDArray[np.int8]:
        """Return the distance of each endpoint to the peer; cached, because requests share few peers."""
        places = tuple(numbers.get(place(peer), _UNKNOWN) for _, place, numbers, _ in self._levels)
        found = self._distances.get(places)
        if found is None:
            found = np.full(len(self.topologies), Distance.NOTHING_SHARED, dtype=np.int8)
            for number, (distance, _, _, of_endpoint) in reversed(tuple(zip(places, self._levels, strict=True))):
                if number != _UNKNOWN:
                    found[of_endpoint == number] = distance
            if len(self._distances) < len(self.topologies):  # headers may hold any combination
                self._distances[places] = found
        return found


def _numbered(names: list[str]) -> tuple[dict[str, int], RowArray]:
    numbers = {"": _UNKNOWN}
    return numbers, np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.intp)


def _peer_topology(header: str) -> str:
    if header.lower() != PEER_TOPOLOGY:
        raise ValueError(f"is {header!r}, but the only header supported is {PEER_TOPOLOGY}")
    return PEER_TOPOLOGY


_HeaderName = Annotated[str, AfterValidator(_peer_topology)]


class TopologyProducerParameters(CamelParameters):
    """Names the producer of topologies."""

    topology_producer_name: Annotated[str, Field(description="Instance that provides topologies; empty for the only one.")] = ""


class TopologyParameters(TopologyProducerParameters):
    """Names the producer of topologies, and the header with a peer of another picker."""

    peer_topology_header: Annotated[
        _HeaderName | None,
        Field(
            description=f"Header that says where an earlier stage ran, for requests without one here: `{PEER_TOPOLOGY}`.",
            examples=[PEER_TOPOLOGY],
        ),
    ] = None


P = TypeVar("P", bound=TopologyParameters)


class _NearPeer(Plugin[P]):
    @classmethod
    def subscriptions(cls, parameters: P) -> Subscriptions:
        return Subscriptions((), (PEER_ENDPOINT, TOPOLOGY.from_producer(parameters.topology_producer_name)))

    def __init__(self, name: str, parameters: P, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._topology = TOPOLOGY.from_producer(parameters.topology_producer_name)
        self._header = parameters.peer_topology_header

    def _distances(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> npt.NDArray[np.int8] | None:
        places = endpoints.derived_from_objects(self._topology, Places)
        peer = state.get(PEER_ENDPOINT)
        if peer is not None:
            position = endpoints.pool_position(peer.name)
            topology = None if position is None else places.topologies[position]
        else:
            topology = decoded(request.headers.get(self._header, "")) if self._header else None
        return None if topology is None else endpoints.gather(places.distances(topology))


_REACH = {name: distance for distance, name, _ in _LEVELS}


class TopologyFilterParameters(TopologyParameters):
    """Sets how near to the peer an endpoint must be."""

    min_affinity: Annotated[
        Literal["host", "rack", "zone", "region"],
        Field(description="Largest place that an endpoint must share with the peer: `host`, `rack`, `zone` or `region`."),
    ] = "host"


class TopologyAffinityFilter(_NearPeer[TopologyFilterParameters], Filter[TopologyFilterParameters]):
    """Keeps endpoints that share `minAffinity`, or a smaller place, with the endpoint of an earlier stage of the request.

    Unknown places are not shared. All are kept without such a peer, if its place is unknown, or if none is near enough. If another picker
    chose the peer, `topology-stamp-handler` sends its place to the client, and `peerTopologyHeader` reads it.
    """

    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: TopologyFilterParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._reach = _REACH[parameters.min_affinity]

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> BoolArray | Endpoints:
        distances = self._distances(request, endpoints, state)
        if distances is None:
            return endpoints
        near: BoolArray = distances <= self._reach
        return near if np.count_nonzero(near) else endpoints


_SCORES = np.array((1.0, 0.20, 0.05, 0.02, 0.0))  # by `Distance`


class TopologyAffinityScorer(_NearPeer[TopologyParameters], Scorer[TopologyParameters]):
    """Prefers endpoints near that of an earlier stage of the request.

    score = 1 on its host, 0.2 in its rack, 0.05 in its zone, 0.02 in its region; else 0, also without a peer.
    """

    category = Category.AFFINITY
    stability = Stability.EXPERIMENTAL

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        distances = self._distances(request, endpoints, state)
        return np.zeros(len(endpoints)) if distances is None else _SCORES[distances]


class TopologyStampParameters(TopologyProducerParameters):
    """Names the profile whose endpoint is reported, and the header."""

    header_name: Annotated[_HeaderName, Field(description="Response header; no other is supported.")] = PEER_TOPOLOGY
    profile_name: Annotated[str, Field(description="Profile whose endpoint is reported; empty for the primary.")] = ""


class TopologyStampHandler(PreRequest[TopologyStampParameters], ResponseObserver[TopologyStampParameters]):
    """Reports to clients where their request ran, for a later stage at another picker.

    Responses carry `x-peer-topology: host=node12,rack=r7,zone=us-east1-a`, unless the place is unknown or the profile did not run.
    """

    stability = Stability.EXPERIMENTAL

    @classmethod
    def subscriptions(cls, parameters: TopologyStampParameters) -> Subscriptions:
        return Subscriptions((TOPOLOGY.from_producer(parameters.topology_producer_name),))

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        run = result.runs.get(self.parameters.profile_name or result.primary)
        if run is not None and run.picked is not None:
            key = TOPOLOGY.from_producer(self.parameters.topology_producer_name)
            state.private["topology"] = run.picked.take([0]).objects(key)[0]

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> Mapping[str, str] | None:
        topology = state.private.get("topology")
        stamp = encoded(topology) if isinstance(topology, Topology) else ""
        return {self.parameters.header_name: stamp} if stamp else None
