"""What every plugin is: a class and what it declares, built once per configured instance."""

from __future__ import annotations

import enum
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypeVar, get_original_bases

from endpick.api.data import AnyKey, DataKey, Subscriptions
from endpick.api.endpoint import Endpoint
from endpick.api.errors import ConfigurationError

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

T = TypeVar("T")


class Parameters(BaseModel):
    """Base of every plugin's parameters: closed (an unknown name is an error) and immutable.

    Give every field a `description`; it is what `endpick describe`, the editor and the reference show.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, populate_by_name=True)


HAS_NO_EFFECT = "x-no-effect"
"""Keyword of a JSON Schema: this parameter is accepted for the sake of configurations written for llm-d, and has no effect; its value says
what to do instead."""


def ignored(alias: str, instead: str) -> Any:  # noqa: ANN401 - what pydantic's own `Field` returns
    """What marks a field of `Parameters` that llm-d accepts and ignores; use it in place of pydantic's `Field`.

    For example `block_size: Annotated[int | None, ignored("blockSize", "give it to `approx-prefix-cache-producer`")] = None`. The host
    warns where it is given, with its place, and refuses it under apiVersion endpick/v1alpha1. The plugin does nothing about it.

    Args:
        alias: The name in the document.
        instead: What to do, as a clause: "give it to `approx-prefix-cache-producer`".
    """
    return Field(alias=alias, description=f"No effect, as in llm-d: {instead}.", json_schema_extra={HAS_NO_EFFECT: instead})


@dataclass(frozen=True, slots=True)
class RefersTo:
    """Marks a parameter whose value is the name of another instance: `Annotated[str, RefersTo(DisaggregationDecider), Field(...)]`.

    Works on a `str`, on an optional one and on a sequence of them, also in nested models; an empty name refers to nothing. The host reports
    names that no instance has, instances of another kind, and instances that refer to each other in a circle, and builds the instance that
    is referred to first, wherever the document defines it. The plugin asks for it with `PluginContext.instance`.

    Attributes:
        kind: What the instance must be: a kind whose instances other plugins call, today `DisaggregationDecider`.
    """

    kind: type[Plugin[Any]]


class Stability(enum.StrEnum):
    """How much the author promises."""

    EXPERIMENTAL = "experimental"
    STABLE = "stable"
    DEPRECATED = "deprecated"


class ColumnWriter(Protocol):
    """Where a collector puts what it found; made by the host for one payload."""

    @property
    def endpoint(self) -> Endpoint | None:
        """Whose payload this is; None for a pool-wide one."""

    def set(self, key: DataKey[T], value: T, endpoint: Endpoint | None = None) -> None:
        """Write a value of scope `ENDPOINT`, for `endpoint` or else for the payload's own; ignored for an endpoint that has left.

        A number that is infinite, or beyond 1e300 either way, is no measurement and counts as not reported: readers find NaN.

        Raises:
            UndeclaredAccess: under test, when the collector does not produce the key.
            ValueError: no endpoint was named and the payload has none.
        """

    def set_pool(self, key: DataKey[T], value: T) -> None:
        """Write a value of scope `POOL`."""

    def endpoints(self) -> Iterable[Endpoint]:
        """Every endpoint in the pool now, for pool-wide payloads that speak of single endpoints."""


@dataclass(frozen=True, slots=True)
class PluginContext:
    """What the host hands to an instance at construction.

    Attributes:
        random: The instance's own generator; seeded in tests and simulations, so use no other.
        clock: Monotonic seconds; virtual in simulations, so use no other.
        logger: Already carries instance, type and distribution.
        registry: Where the instance may register Prometheus metrics; it is the instance's alone, and `/metrics` adds the labels
            `plugin_name` and `plugin_type`. Label values that clients choose belong through a `LabelLimit`, and what is counted in each
            request into a metric of `endpick.api.fast_metrics`; `Limits` counts what the instance refuses because it is too much.
            None when there is no metrics server.
        columns: Where an instance writes columns it produces on the request path; collectors use the writer they are called with.
            None where there is no table, as in most tests.
        instances: What stands for each instance that a parameter marked with `RefersTo` names, by name; see `instance`.
    """

    random: random.Random = field(default_factory=random.Random)
    clock: Callable[[], float] = lambda: 0.0
    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("endpick.plugin"))
    registry: CollectorRegistry | None = None
    columns: ColumnWriter | None = None
    instances: Mapping[str, Plugin[Any]] = field(default_factory=dict)

    def instance(self, name: str, kind: Callable[..., K]) -> K:
        """The instance that a parameter marked `RefersTo(kind)` names. Ask once, in the constructor, and keep the answer.

        A call of it is timed, counted and guarded as every call that the host makes: when it fails, the fault is that instance's, and the
        call gives the answer that the method's documentation names for this, unless its `onFault` asks to refuse the request.

        Raises:
            ConfigurationError: no parameter that is marked with `RefersTo` names it; cannot happen where the host builds the plugin.
        """
        found = self.instances.get(name)
        if not isinstance(found, cast("type[Any]", kind)):
            raise ConfigurationError(f"'{name}' is not an instance that a parameter refers to as {kind}")
        return cast("K", found)


P = TypeVar("P", bound=Parameters, default=Parameters)
K = TypeVar("K", bound="Plugin[Any]")


class Plugin(Generic[P]):
    """Base of all kinds. Subclass a kind (`Scorer`, `Filter`, …), not this.

    Each fact about a plugin type stands once: its name is the name of its entry point, the major version of the API is in the entry-point
    group, the version of endpick it needs is what its distribution requires, and the model of its `parameters:` block is the generic
    argument: `class QueueScorer(Scorer[QueueParameters])`. What is left are the attributes below; the host reads them right after import.

    The host builds one object per configured instance, at start, in configuration order. It calls everything from one thread:
    plugins need no locks, and must not block.
    """

    kind: ClassVar[str]
    """What operators call the kind, such as `scorer`; set by the kinds of `endpick.api`, never by a plugin."""

    consumes: ClassVar[tuple[AnyKey, ...]] = ()
    """Data keys the plugin must have: the host refuses to start, or adds a default producer, when no instance writes one of them."""
    consumes_optional: ClassVar[tuple[AnyKey, ...]] = ()
    """Data keys the plugin reads when an instance produces them; reads give NaN, None or the default otherwise."""
    produces: ClassVar[tuple[AnyKey, ...]] = ()
    """Data keys the plugin writes."""

    parameters_schema: ClassVar[Mapping[str, object] | None] = None
    """A JSON Schema the `parameters:` block must satisfy as well, for authors who already have one; no remote `$ref`."""

    ignores_parameters: ClassVar[bool] = False
    """For a plugin without parameters whose namesake in llm-d takes any and looks at none: configurations written for llm-d get a warning
    for each instead of an error."""

    stability: ClassVar[Stability] = Stability.STABLE
    """See `Stability`."""
    replaced_by: ClassVar[str | None] = None
    """For a deprecated plugin: the type to use instead."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Former names of the type, accepted with a warning. Each has an entry point of its own beside that of the type itself."""

    tolerated_age_seconds: float | None = None
    """Age at which the instance takes data of an endpoint for stale; None when it does not look at ages. An endpoint with nothing to do is
    asked less often than others, but at least twice within this time. Read once, after construction."""

    def __init__(self, name: str, parameters: P, context: PluginContext) -> None:
        """Keep the three arguments; subclasses that need more call `super().__init__(name, parameters, context)` first.

        Args:
            name: Instance name, unique in the configuration.
            parameters: Validated `parameters:` block, of the model that is the class's generic argument.
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
        return Subscriptions(cls.consumes, cls.consumes_optional, cls.produces)

    async def start(self) -> None:
        """Acquire what the instance needs (sessions, files). Called once, before traffic, in configuration order.

        Raises:
            ConfigurationError: something named in the parameters does not work; start-up ends with this message.
        """

    async def stop(self) -> None:
        """Release everything. Called once, after the last request, in reverse order, even when another instance failed to stop."""

    def endpoint_removed(self, name: str) -> None:
        """Forget what was learnt about an endpoint. Called after it left the pool, with `Endpoint.name`.

        Of thousands that leave at once it is called in turns, and later while the instance is left out; some may be there again by then.
        """

    def learnt_bytes(self) -> int:
        """About how much memory takes what the instance has learnt from requests; 0 for one that keeps nothing. Called every second."""
        return 0

    def forget_some(self) -> bool | None:
        """Forget a good part of what can be learnt again. Called when the process is short of memory, every 10 s at most.

        Requests wait meanwhile. What takes more than some milliseconds is forgotten in parts: the host calls again within 0.1 s, as long as
        the answer is True.
        """


def generic_arguments(plugin: type, base: type) -> tuple[object, ...]:
    """What a class puts in place of the type parameters of one of its bases; for parameters it leaves open, their defaults.

    `generic_arguments(QueueScorer, Plugin)` is `(QueueParameters,)`: how the host finds the model of a plugin's parameters.
    """
    return tuple(argument.__default__ if isinstance(argument, TypeVar) else argument for argument in _arguments(plugin, base))


def _arguments(plugin: type, base: type) -> tuple[object, ...]:
    if plugin is base:
        parameters: tuple[object, ...] = getattr(base, "__parameters__", ())
        return parameters
    found: tuple[object, ...] = ()
    for given in get_original_bases(plugin):
        origin = get_origin(given) or given
        if isinstance(origin, type) and issubclass(origin, base):
            chosen = dict(zip(getattr(origin, "__parameters__", ()), get_args(given), strict=False))
            arguments = tuple(chosen.get(argument, argument) for argument in _arguments(origin, base))
            if not all(isinstance(argument, TypeVar) for argument in arguments):
                return arguments
            found = found or arguments
    return found
