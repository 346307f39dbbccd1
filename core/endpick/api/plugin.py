"""What every plugin is: a class with metadata, built once per configured instance."""

from __future__ import annotations

import builtins
import enum
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic

from pydantic import BaseModel, ConfigDict
from typing_extensions import TypeVar

from endpick.api.data import AnyKey, Subscriptions

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from endpick.api.columns import ColumnWriter


class Parameters(BaseModel):
    """Base of every plugin's parameters: closed (an unknown name is an error) and immutable.

    Give every field a `description`; it is what `endpick describe`, the editor and the reference show.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, populate_by_name=True)


class Kind(enum.StrEnum):
    """What a plugin can do; follows from its base classes and is never declared a second time."""

    FILTER = "filter"
    SCORER = "scorer"
    PICKER = "picker"
    PROFILE_HANDLER = "profile-handler"
    DATA_SOURCE = "data-source"
    DATA_COLLECTOR = "data-collector"
    ENDPOINT_DISCOVERY = "endpoint-discovery"
    DATA_PRODUCER = "data-producer"
    SCREENER = "screener"
    ADMITTER = "admitter"
    PRE_REQUEST = "pre-request"
    RESPONSE_OBSERVER = "response-observer"
    PARSER = "parser"
    SATURATION_DETECTOR = "saturation-detector"


class Category(enum.StrEnum):
    """What a scorer is after; shown to operators, without effect on routing."""

    AFFINITY = "affinity"
    DISTRIBUTION = "distribution"
    BALANCE = "balance"


class Stability(enum.StrEnum):
    """How much the author promises."""

    EXPERIMENTAL = "experimental"
    STABLE = "stable"
    DEPRECATED = "deprecated"


@dataclass(frozen=True, slots=True)
class PluginMeta:
    """Static facts of a plugin type, checked right after import.

    Attributes:
        type: Must equal the entry-point name. Third parties prefix theirs: `acme.queue-scorer`.
        api: Range of plugin API versions the plugin works with (PEP 440 specifiers), e.g. `>=1.0,<2`.
        parameters: Model of the `parameters:` block.
        parameters_schema: A JSON Schema the block must satisfy as well, for authors who already have one; no remote `$ref`.
        consumes: Data keys the plugin must have.
        consumes_optional: Data keys the plugin uses when somebody produces them.
        produces: Data keys the plugin writes.
        payload: What a data source gives, and what a data collector takes.
        default_source: Plugin type of the source the host adds for a collector that no source feeds.
        default_collectors: Plugin types of the collectors the host attaches to a source that has none.
        category: For scorers.
        stability: See `Stability`.
        replaced_by: For deprecated types: what to use instead.
        aliases: Former names of the type, accepted with a warning; each needs its own entry point.
    """

    type: str
    api: str
    parameters: builtins.type[Parameters] = Parameters
    parameters_schema: Mapping[str, object] | None = None
    consumes: tuple[AnyKey, ...] = ()
    consumes_optional: tuple[AnyKey, ...] = ()
    produces: tuple[AnyKey, ...] = ()
    payload: builtins.type[object] | None = None
    default_source: str | None = None
    default_collectors: tuple[str, ...] = ()
    category: Category | None = None
    stability: Stability = Stability.STABLE
    replaced_by: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PluginContext:
    """What the host hands to an instance at construction.

    Attributes:
        random: The instance's own generator; seeded in tests and simulations, so use no other.
        clock: Monotonic seconds; virtual in simulations, so use no other.
        logger: Already carries instance, type and distribution.
        registry: Where the instance may register Prometheus metrics; it is the instance's alone, and `/metrics` adds the labels
            `plugin_name` and `plugin_type`. Label values that clients choose belong through a `LabelLimit`. None when there is no metrics
            server.
        columns: Where an instance writes columns it produces on the request path; collectors use the writer they are called with.
            None when nobody keeps a table, as in most tests.
    """

    random: random.Random = field(default_factory=random.Random)
    clock: Callable[[], float] = lambda: 0.0
    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("endpick.plugin"))
    registry: CollectorRegistry | None = None
    columns: ColumnWriter | None = None


P = TypeVar("P", bound=Parameters, default=Parameters)


class Plugin(Generic[P]):
    """Base of all kinds. Subclass a kind (`Scorer`, `Filter`, …), not this.

    The host builds one object per configured instance, at start, in configuration order. It calls everything from one thread:
    plugins need no locks, and must not block.
    """

    meta: ClassVar[PluginMeta]
    kind: ClassVar[Kind]

    def __init__(self, name: str, parameters: P, context: PluginContext) -> None:
        """Keep the three arguments; subclasses that need more call `super().__init__(name, parameters, context)` first.

        Args:
            name: Instance name, unique in the configuration.
            parameters: Validated `parameters:` block, of the type named in `meta.parameters`.
            context: Clock, randomness, logger and metrics registry of this instance.

        Raises:
            ConfigurationError: the parameters cannot work together.
        """
        self.name = name
        self.parameters = parameters
        self.context = context

    @classmethod
    def subscriptions(cls, parameters: P) -> Subscriptions:
        """Data keys of an instance with these parameters. Override only when they depend on the parameters.

        Called at start, before any instance exists.
        """
        return Subscriptions(cls.meta.consumes, cls.meta.consumes_optional, cls.meta.produces)

    async def start(self) -> None:
        """Acquire what the instance needs (sessions, files). Called once, before traffic, in configuration order.

        Raises:
            ConfigurationError: something named in the parameters does not work; start-up ends with this message.
        """

    async def stop(self) -> None:
        """Release everything. Called once, after the last request, in reverse order, even when another instance failed to stop."""

    def endpoint_removed(self, name: str) -> None:
        """Forget what was learnt about an endpoint. Called after it left the pool, with `Endpoint.name`."""


def kinds_of(plugin: type) -> tuple[Kind, ...]:
    """Every kind a class is, from its bases, in the order of `Kind`; empty for a class that is none."""
    found = {base.__dict__["kind"] for base in plugin.__mro__ if "kind" in base.__dict__}
    return tuple(kind for kind in Kind if kind in found)
