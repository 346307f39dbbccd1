"""Endpoint changes as a data source, and the collector that reads where endpoints run from their labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from endpick.api import ColumnWriter, DataCollector, EndpointChange, EndpointEvent, EndpointEventSource, Parameters, Stability
from endpick.api.keys import TOPOLOGY, Topology


class EndpointNotificationSource(EndpointEventSource[Parameters, EndpointEvent]):
    """Notifies its collectors when an endpoint joins the pool, changes its labels, or leaves.

    An endpoint that moves to another address leaves and joins. A reload announces every endpoint again.
    """

    def notify(self, event: EndpointEvent) -> EndpointEvent:
        """Return the event."""
        return event


class TopologyParameters(Parameters):
    """The labels that hold an endpoint's location."""

    hostname: Annotated[str, Field(min_length=1, description="Label that holds the host.")] = "kubernetes.io/hostname"
    rack: Annotated[str, Field(min_length=1, description="Label that holds the rack.")] = "topology.kubernetes.io/rack"
    zone: Annotated[str, Field(min_length=1, description="Label that holds the zone.")] = "topology.kubernetes.io/zone"
    region: Annotated[str, Field(min_length=1, description="Label that holds the region.")] = "topology.kubernetes.io/region"


class TopologyExtractor(DataCollector[TopologyParameters, EndpointEvent]):
    """Reads host, rack, zone and region of an endpoint from its labels. A missing label leaves its part empty."""

    produces = (TOPOLOGY,)
    default_source = "endpoint-notification-source"
    stability = Stability.EXPERIMENTAL

    def collect(self, payload: EndpointEvent, writer: ColumnWriter) -> None:
        """Write the location of the endpoint."""
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
    """Accepts llm-d's configuration of a watch on Kubernetes objects, and delivers nothing.

    No built-in collector reads such objects. Starting the source logs a warning; collectors bound to it are never called.
    """

    async def start(self) -> None:
        """Warn that nothing is watched."""
        kind = "/".join(filter(None, (self.parameters.group, self.parameters.version, self.parameters.kind)))
        self.context.logger.warning("no objects of kind %s are watched: without Kubernetes the source has nothing to deliver", kind)

    def notify(self, event: EndpointEvent) -> None:
        """Deliver nothing: endpoints are not Kubernetes objects."""
