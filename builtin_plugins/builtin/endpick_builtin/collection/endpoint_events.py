"""What endpoints say of themselves by being there: their labels, told to collectors as endpoints come, change and go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from endpick.api import (
    TOPOLOGY,
    ColumnWriter,
    DataCollector,
    EndpointChange,
    EndpointEvent,
    EndpointEventSource,
    Parameters,
    Stability,
    Topology,
)


class EndpointNotificationSource(EndpointEventSource[Parameters, EndpointEvent]):
    """Tells its collectors of each endpoint that joins the pool, gets other labels, or leaves.

    An endpoint that moves to another address leaves and joins. After a reload collectors hear of every endpoint again.
    """

    def notify(self, event: EndpointEvent) -> EndpointEvent:
        """The event as it is."""
        return event


class TopologyParameters(Parameters):
    """Which labels of an endpoint say where it runs."""

    hostname: Annotated[str, Field(min_length=1, description="Label that holds the host.")] = "kubernetes.io/hostname"
    rack: Annotated[str, Field(min_length=1, description="Label that holds the rack.")] = "topology.kubernetes.io/rack"
    zone: Annotated[str, Field(min_length=1, description="Label that holds the zone.")] = "topology.kubernetes.io/zone"
    region: Annotated[str, Field(min_length=1, description="Label that holds the region.")] = "topology.kubernetes.io/region"


class TopologyExtractor(DataCollector[TopologyParameters, EndpointEvent]):
    """Reads from an endpoint's labels on which host it runs, and in which rack, zone and region.

    A label that is missing leaves its part empty, and so does a change of labels that takes one away: an empty part is near to nothing.
    """

    produces = (TOPOLOGY,)
    default_source = "endpoint-notification-source"
    stability = Stability.EXPERIMENTAL

    def collect(self, payload: EndpointEvent, writer: ColumnWriter) -> None:
        """Write where the endpoint runs."""
        if payload.change is EndpointChange.REMOVED:
            return
        labels, names = payload.endpoint.labels, self.parameters
        places = (labels.get(label, "") for label in (names.hostname, names.rack, names.zone, names.region))
        writer.set(TOPOLOGY, Topology(*places))


class KubernetesNotificationParameters(Parameters):
    """Which objects to watch."""

    group: Annotated[str, Field(description="API group; empty for the core group.")] = ""
    version: Annotated[str, Field(min_length=1, description="API version.", examples=["v1"])]
    kind: Annotated[str, Field(min_length=1, description="Kind of the objects.", examples=["Pod"])]


class KubernetesNotificationSource(EndpointEventSource[KubernetesNotificationParameters, Mapping[str, object]]):
    """Takes llm-d's configuration of a watch on Kubernetes objects, and delivers nothing: no built-in collector reads such objects.

    It says so in the log when it starts. Collectors bound to it are never called, so what they would write keeps its default.
    """

    async def start(self) -> None:
        """Say what does not happen."""
        kind = "/".join(filter(None, (self.parameters.group, self.parameters.version, self.parameters.kind)))
        self.context.logger.warning("no objects of kind %s are watched: without Kubernetes the source has nothing to deliver", kind)

    def notify(self, event: EndpointEvent) -> None:
        """Nothing: endpoints are no Kubernetes objects."""
