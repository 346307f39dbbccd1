"""The base class of all plugins, their parameters and durations, and the context they are built with."""

from __future__ import annotations

import enum
import logging
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Protocol, TypeAlias, cast, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from typing_extensions import TypeVar, get_original_bases

from endpick.api.data import AnyKey, DataKey, Subscriptions
from endpick.api.endpoint import Endpoint
from endpick.api.endpoints import Endpoints
from endpick.api.errors import ConfigurationError

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry


MAX_SECONDS = (2**63 - 1) / 1e9  # the longest duration Go can hold, about 292 years

_SECONDS_PER_UNIT = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "μs": Fraction(1, 10**6),
    "ms": Fraction(1, 10**3),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
}
A_DURATION = "a duration such as 50ms or 1m30s"
_PART = r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"
_DURATION = rf"([-+]?)(0|({_PART})+)"


def parse_duration(text: str) -> float:
    """Parse a Go duration such as `200ms` or `1m30s` into seconds; the sign may be negative.

    Raises:
        ValueError: The text is not a duration, or is longer than 292 years, the longest that Go can hold.
    """
    match = re.fullmatch(_DURATION, text)
    if match is None:
        raise ValueError(f"'{text}' is not {A_DURATION}")
    parts = re.findall(_PART, match[2])
    seconds = float(sum(Fraction(number.rstrip(".")) * _SECONDS_PER_UNIT[unit] for number, unit in parts))
    if seconds > MAX_SECONDS:
        raise ValueError(f"'{text}' is not a duration: it is longer than 292 years")
    return -seconds if match[1] == "-" else seconds


def duration_text(seconds: float) -> str:
    """Format seconds so that `parse_duration` reads them back."""
    if 0 < abs(seconds) < 1:
        return f"{seconds * 1000:g}ms"
    unit, size = next(((unit, size) for unit, size in (("h", 3600), ("m", 60)) if seconds and seconds % size == 0), ("s", 1))
    return f"{seconds / size:g}{unit}"


def _read(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else value


DURATION_SCHEMA = {"type": "string", "pattern": f"^{_DURATION}$", "examples": ["50ms", "2s", "1m30s"]}

Duration: TypeAlias = Annotated[float, BeforeValidator(_read), WithJsonSchema(DURATION_SCHEMA)]
"""A parameter written as a Go duration and read as seconds. Add `Field(gt=0)` to refuse zero and less."""


T = TypeVar("T")


class Parameters(BaseModel):
    """The base class of all plugin parameters, a pydantic model.

    Unknown names are errors; instances are immutable. Give every field a `description`, for `endpick describe`, editors and the reference.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, populate_by_name=True)


HAS_NO_EFFECT = "x-no-effect"
"""JSON Schema keyword for parameters without effect; the value is the advice."""


def ignored(alias: str, instead: str) -> Any:  # noqa: ANN401 - what pydantic's own `Field` returns
    """A `Parameters` field that llm-d accepts and ignores, in place of pydantic's `Field`.

    Setting it is a warning, under apiVersion endpick/v1alpha1 an error. `instead` is a clause: "give it to `a-producer`".
    """
    return Field(alias=alias, description=f"No effect, as in llm-d: {instead}.", json_schema_extra={HAS_NO_EFFECT: instead})


@dataclass(frozen=True, slots=True)
class RefersTo:
    """Marks a parameter that names another instance.

    Write `Annotated[str, RefersTo(DisaggregationDecider), Field(...)]`. Works on strings, optional strings and sequences of strings, also
    in nested models; empty names refer to nothing. The planner refuses other instances than those of the kind. The host builds the named
    instance first; get it with `PluginContext.instance`.

    Attributes:
        kind: The kind of the named instance: `DisaggregationDecider` or `SaturationDetector`.
    """

    kind: type[Plugin[Any]]


class Stability(enum.StrEnum):
    """The author's promise about a plugin. The host warns if it is not stable."""

    EXPERIMENTAL = "experimental"
    """The plugin may change with any release."""
    STABLE = "stable"
    """The plugin keeps its parameters and its behaviour."""
    DEPRECATED = "deprecated"
    """The plugin will be removed; `Plugin.replaced_by` names its successor."""


class ColumnWriter(Protocol):
    """Writes endpoint and pool data, for collectors and from the request path.

    `DataCollector.collect` gets one with each payload; `PluginContext.columns` is one.
    """

    @property
    def endpoint(self) -> Endpoint | None:
        """The endpoint of the payload; None for a pool-wide payload and for `PluginContext.columns`."""

    def set(self, key: DataKey[T], value: T, endpoint: Endpoint | None = None) -> None:
        """Write a value of scope `ENDPOINT` for an endpoint, by default the payload's.

        Infinite numbers, and numbers beyond ±1e300, count as not reported. The value is dropped if the endpoint left the pool.

        Raises:
            ValueError: There is no endpoint: the payload is pool-wide.
            UnknownKey: The key's scope is not `ENDPOINT`.
            UndeclaredAccess: The key is not in `produces`. Only under test; else the value is dropped.
        """

    def set_pool(self, key: DataKey[T], value: T) -> None:
        """Write a value of scope `POOL`.

        Raises:
            UnknownKey: The key's scope is not `POOL`.
            UndeclaredAccess: The key is not in `produces`. Only under test; else the value is dropped.
        """

    def restarted(self, endpoint: Endpoint | None = None) -> None:
        """Report that the model server of an endpoint, by default the payload's, restarted in place.

        Drops the endpoint's values, and calls `Plugin.endpoint_removed` of every plugin, also of the caller.
        """

    def endpoints(self) -> Endpoints:
        """Return a view of all endpoints in the pool, with the data keys that the plugin declares."""


@dataclass(frozen=True, slots=True)
class PluginContext:
    """The services that the host passes to a plugin's constructor.

    Attributes:
        random: The random generator to use; seeded in tests and simulations.
        clock: Monotonic seconds; virtual in simulations.
        logger: Its records carry instance, type and distribution.
        registry: For Prometheus metrics; None without a metrics server. `/metrics` adds `plugin_name` and `plugin_type`. Pass label values
            that clients choose through a `LabelLimit`.
        columns: Writes endpoint data from the request path; None without an endpoint table.
        instances: The instances that parameters refer to, by name; see `instance`.
        is_shared: True if the host sends the results of `LearntState.drain_deltas` to other pickers.
    """

    random: random.Random = field(default_factory=random.Random)
    clock: Callable[[], float] = lambda: 0.0
    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("endpick.plugin"))
    registry: CollectorRegistry | None = None
    columns: ColumnWriter | None = None
    instances: Mapping[str, Plugin[Any]] = field(default_factory=dict)
    is_shared: bool = False

    def instance(self, name: str, kind: Callable[..., K]) -> K:
        """Return the instance named by a parameter marked `RefersTo(kind)`.

        Call it in the constructor. The result has the methods of the kind; its faults count for the named instance.

        Raises:
            ConfigurationError: No such parameter names the instance.
        """
        found = self.instances.get(name)
        if not isinstance(found, cast("type[Any]", kind)):
            raise ConfigurationError(f"'{name}' is not an instance that a parameter refers to as {kind}")
        return cast("K", found)


P = TypeVar("P", bound=Parameters, default=Parameters)
K = TypeVar("K", bound="Plugin[Any]")


MAX_DUMPED = 100
"""The most entries of a list that `Plugin.dump_state` returns."""


class Plugin(Generic[P]):
    """The base class of all kinds. Subclass a kind (`Scorer`, `Filter`, …), not this.

    The entry point names the type, its group the API version, and the generic argument the parameters:
    `class QueueScorer(Scorer[QueueParameters])`. A class may have several kinds.

    The host builds one object per configured instance at start, and calls everything from one thread: plugins need no locks and must not
    block.
    """

    kind: ClassVar[str]
    """The kind's name, such as `scorer`. Set by `endpick.api`, never by a plugin."""

    consumes: ClassVar[tuple[AnyKey, ...]] = ()
    """Required data keys; see `Subscriptions`."""
    consumes_optional: ClassVar[tuple[AnyKey, ...]] = ()
    """Data keys that may have no producer; reads then return NaN, None or the default."""
    produces: ClassVar[tuple[AnyKey, ...]] = ()
    """Data keys that the plugin writes; it may also read them."""

    parameters_schema: ClassVar[Mapping[str, object] | None] = None
    """A JSON Schema for `parameters:`, in addition to the model. No remote `$ref`."""

    ignores_parameters: ClassVar[bool] = False
    """True for llm-d plugins that ignore any parameters: they cause warnings instead of errors."""

    stability: ClassVar[Stability] = Stability.STABLE
    """The author's promise; the host warns about experimental and deprecated plugins."""
    replaced_by: ClassVar[str | None] = None
    """The type to use instead of a deprecated plugin; the host's warning names it."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Former type names, accepted with a warning. Each has its own entry point."""

    tolerated_age_seconds: float | None = None
    """Age in seconds at which endpoint data is stale for the instance, or None. The data layer polls idle endpoints at least twice within
    it.
    """

    def __init__(self, name: str, parameters: P, context: PluginContext) -> None:
        """Build the instance. Subclasses call this first.

        The host calls it at start, and at a reload if the instance is new or changed. `name` is the instance's name in the configuration.

        Raises:
            ConfigurationError: The parameters cannot work together. The host refuses the start or the reload.
        """
        self.name = name
        self.parameters = parameters
        self.context = context

    @classmethod
    def subscriptions(cls, parameters: P) -> Subscriptions:
        """Return the data keys of an instance; override it if they depend on parameters.

        The planner calls it before any instance exists. Default: `consumes`, `consumes_optional` and `produces` of the class.

        Raises:
            ConfigurationError: The parameters cannot work together.
        """
        return Subscriptions(cls.consumes, cls.consumes_optional, cls.produces)

    async def start(self) -> None:
        """Open sessions and files.

        The host calls it once before traffic, in configuration order, and waits at most 30 seconds. After an exception it stops the
        instances started so far, and refuses the start or the reload; the message of a ConfigurationError is for operators.
        """

    async def stop(self) -> None:
        """Release everything.

        The host calls it once after the last request, in reverse order, and waits at most 10 seconds. At a reload it comes when requests
        had time to finish.
        """

    def dump_state(self) -> object:
        """Return the state that the instance has learnt, for `GET /debug/plugins/state`.

        The host calls it for each such request, on the event loop. Return JSON values with at most 100 entries of each list
        (`endpick.api.plugin.MAX_DUMPED`), and never prompts or credentials. Default: None, for no state.
        """
        return None

    def endpoint_removed(self, name: str) -> None:
        """Forget state about an endpoint.

        The host calls it with `Endpoint.name` after the endpoint left the pool, its address changed, or its model server restarted.
        Default: nothing.
        """


def generic_arguments(plugin: type, base: type) -> tuple[object, ...]:
    """`generic_arguments(QueueScorer, Plugin)` is `(QueueParameters,)`; arguments left open have their defaults."""
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
