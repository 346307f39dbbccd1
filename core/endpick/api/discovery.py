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
    """A model that replaces the requested one, in proportion to its weight."""

    model: str
    weight: int = 0


@dataclass(frozen=True, slots=True)
class ModelRewrite:
    """Replaces the models of requests, or any model if `models` is empty, by one of `targets`; without targets it does nothing."""

    models: tuple[str, ...]
    targets: tuple[ModelTarget, ...]


class EndpointRegistry(Protocol):
    """Accepts the reports of a discovery. Endpoints beyond the pool's maximum are left out."""

    def upsert(self, endpoint: Endpoint) -> None:
        """Add or replace an endpoint by name. It keeps its columns unless its address changed."""

    def remove(self, name: str) -> None:
        """Remove an endpoint; an unknown name is ignored."""

    def replace_all(self, endpoints: Iterable[Endpoint]) -> None:
        """Replace the whole pool; the last endpoint of a name wins."""

    def set_objectives(self, priorities: Mapping[str, int]) -> None:
        """Set the priorities of inference objectives by name; the configuration takes precedence."""

    def set_rewrites(self, rewrites: Iterable[ModelRewrite]) -> None:
        """Set model rewrites. Precedence: the configuration, rules with the model, rules for all models; among equals the first."""

    def ready(self) -> None:
        """Report that the pool is complete; endpick serves from then on."""

    def stand_by(self, reason: str) -> None:
        """Make this replica report NOT_SERVING; an empty reason makes it serve."""

    async def until_ending(self) -> None:
        """Wait until the process shuts down."""


class MetricsAccess(StrEnum):
    """Answer to a client of `/metrics`."""

    GRANTED = "granted"
    UNKNOWN = "unknown"  # no token, or one that nobody has
    FORBIDDEN = "forbidden"


class EndpointDiscovery(Plugin[P]):
    """Finds the endpoints of the pool. A configuration has one."""

    kind: ClassVar[str] = "endpoint-discovery"

    publishes_objectives: ClassVar[bool] = False
    """True if it calls `EndpointRegistry.set_objectives`."""

    @property
    def not_ready_because(self) -> str:
        """Why `registry.ready()` was not called yet, for the error when start-up times out; empty if unknown."""
        return ""

    async def metrics_access(self, token: str) -> MetricsAccess:
        """Whether the owner of a bearer token, empty for none, may read `/metrics`. Called for each scrape with `--metrics-endpoint-auth`.

        Default: everyone may.
        """
        return MetricsAccess.GRANTED

    @abstractmethod
    async def run(self, registry: EndpointRegistry) -> None:
        """Report endpoints until cancelled; return if nothing will change any more.

        A ConfigurationError ends start-up before `registry.ready()`. Later, `run` is called again with back-off, as after any error.
        """


@dataclass(frozen=True, slots=True, order=True)
class Peer:
    """Another replica of this endpoint picker; `name` is `namespace/pod`."""

    name: str
    host: str
    port: int


class PeerDiscovery(Plugin[P]):
    """Finds the other replicas of this endpoint picker, from `start` to `stop`. A configuration has at most one."""

    kind: ClassVar[str] = "peer-discovery"

    @property
    @abstractmethod
    def peers(self) -> tuple[Peer, ...]:
        """The replicas known now, by name, without this one."""
