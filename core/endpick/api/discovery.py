"""The kinds that find the endpoints of the pool, and other endpoint pickers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol

from endpick.api.endpoint import Endpoint
from endpick.api.plugin import P, Plugin


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """A model that replaces the requested model, in proportion to its weight.

    Attributes:
        model: The name sent to the model server.
        weight: Not negative. If all weights of a rewrite are 0, its targets are equally likely.
    """

    model: str
    weight: int = 0


@dataclass(frozen=True, slots=True)
class ModelRewrite:
    """A rule that replaces the requested model by one of its targets, drawn by weight.

    Attributes:
        models: Requested models; if empty, every model without a rule of its own.
        targets: Models to send instead; if empty, the rule has no effect.
    """

    models: tuple[str, ...]
    targets: tuple[ModelTarget, ...]


class EndpointRegistry(Protocol):
    """Accepts the reports of a discovery. The host passes it to `EndpointDiscovery.run`.

    Endpoints beyond the pool's maximum are left out. Call its methods on the thread of the event loop. They raise TypeError or ValueError
    for an invalid report, and RuntimeError on another thread. After the discovery was stopped, reports have no effect.
    """

    def upsert(self, endpoint: Endpoint) -> None:
        """Add an endpoint, or replace the endpoint of the same name.

        The endpoint keeps its columns unless its address changed.
        """

    def remove(self, name: str) -> None:
        """Remove an endpoint by name. An unknown name has no effect."""

    def replace_all(self, endpoints: Iterable[Endpoint]) -> None:
        """Replace the whole pool. The last endpoint of a name wins."""

    def set_objectives(self, priorities: Mapping[str, int]) -> None:
        """Replace the priorities of inference objectives, by name; higher is more important.

        Objectives of the configuration take precedence.
        """

    def set_rewrites(self, rewrites: Iterable[ModelRewrite]) -> None:
        """Replace the model rewrites of the discovery.

        For each request the director applies the first rule of the configuration that fits, else the first of the discovery. A rule that
        names the model precedes rules for all models.
        """

    def ready(self) -> None:
        """Report that the pool is complete. endpick serves from the first call on."""

    def stand_by(self, reason: str) -> None:
        """Make this replica report NOT_SERVING, with the reason; an empty reason makes it serve."""

    async def until_ending(self) -> None:
        """Wait until the process begins to shut down, for example to release a lease."""


class MetricsAccess(StrEnum):
    """The answer of a discovery to a client of `/metrics`."""

    GRANTED = "granted"
    """The client may read the page."""
    UNKNOWN = "unknown"  # no token, or one that nobody has
    """The token is missing or belongs to nobody. The client gets status 401."""
    FORBIDDEN = "forbidden"
    """The owner of the token may not read the page. The client gets status 403."""


class EndpointDiscovery(Plugin[P]):
    """Finds the endpoints of the pool. A configuration has one."""

    kind: ClassVar[str] = "endpoint-discovery"

    publishes_objectives: ClassVar[bool] = False
    """True if it calls `EndpointRegistry.set_objectives`. The host then expects requests of negative priority."""

    @property
    def not_ready_because(self) -> str:
        """The reason why `registry.ready()` was not called yet; empty if unknown.

        The host adds it to the error when start-up times out.
        """
        return ""

    async def metrics_access(self, token: str) -> MetricsAccess:
        """Return whether the owner of a bearer token may read `/metrics`.

        The host calls it for each scrape under `--metrics-endpoint-auth`. `token` is empty if the client sent none. Default: everyone may.
        After an exception the client gets status 503.
        """
        return MetricsAccess.GRANTED

    @abstractmethod
    async def run(self, registry: EndpointRegistry) -> None:
        """Report endpoints to the registry until cancelled; return if nothing will change any more.

        The host calls it after `start`, and does not serve before `registry.ready()`. A discovery that returns before that ends start-up.
        Once cancelled it has ten seconds to end.

        Raises:
            ConfigurationError: It cannot work. Ends start-up before `registry.ready()`. Later, and after any other exception, the host
                counts a fault and calls `run` again after 0.5 to 30 seconds.
        """


@dataclass(frozen=True, slots=True, order=True)
class Peer:
    """Another replica of this endpoint picker.

    Attributes:
        name: `namespace/pod`; peers are ordered by it.
        host: IP address without brackets.
        port: TCP port on which replicas exchange state.
    """

    name: str
    host: str
    port: int


class PeerDiscovery(Plugin[P]):
    """Finds the other replicas of this endpoint picker, from `start` to `stop`.

    A configuration has at most one.
    """

    kind: ClassVar[str] = "peer-discovery"

    @property
    @abstractmethod
    def peers(self) -> tuple[Peer, ...]:
        """The replicas known now, in order of their names, without this one."""
