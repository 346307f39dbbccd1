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
    """Parse a Go duration such as `200ms` or `1m30s` into seconds. Raises ValueError."""
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
    """Base of all plugin parameters. Unknown names are errors; instances are immutable.

    Give every field a `description`, for `endpick describe`, editors and the reference.
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
    """Marks a parameter that names another instance: `Annotated[str, RefersTo(DisaggregationDecider), Field(...)]`.

    Works on strings, optional strings and sequences of strings, also in nested models; empty names refer to nothing. The host builds the
    named instance first; get it with `PluginContext.instance`.
    """

    kind: type[Plugin[Any]]


class Stability(enum.StrEnum):
    """How stable the author considers a plugin."""

    EXPERIMENTAL = "experimental"
    STABLE = "stable"
    DEPRECATED = "deprecated"


class ColumnWriter(Protocol):
    """Writes endpoint and pool data; passed to collectors with each payload."""

    @property
    def endpoint(self) -> Endpoint | None:
        """The payload's endpoint; None for a pool-wide payload."""

    def set(self, key: DataKey[T], value: T, endpoint: Endpoint | None = None) -> None:
        """Write a value of scope `ENDPOINT` for `endpoint`, by default the payload's.

        Infinite numbers, and numbers beyond ±1e300, count as not reported. Raises ValueError without an endpoint and, under test,
        UndeclaredAccess for a key that the plugin does not produce.
        """

    def set_pool(self, key: DataKey[T], value: T) -> None:
        """Write a value of scope `POOL`."""

    def restarted(self, endpoint: Endpoint | None = None) -> None:
        """The model server of `endpoint`, by default the payload's, restarted in place.

        Drops the endpoint's values and calls `Plugin.endpoint_removed` of every plugin, also of the caller.
        """

    def endpoints(self) -> Endpoints:
        """All endpoints in the pool, with the data keys that the plugin consumes."""


@dataclass(frozen=True, slots=True)
class PluginContext:
    """What the host passes to a plugin's constructor.

    Attributes:
        random: The random generator to use; seeded in tests and simulations.
        clock: Monotonic seconds; virtual in simulations.
        logger: Its records carry instance, type and distribution.
        registry: For Prometheus metrics; None without a metrics server. `/metrics` adds `plugin_name` and `plugin_type`. Pass label values
            that clients choose through a `LabelLimit`.
        columns: Writes endpoint data from the request path; None without an endpoint table.
        instances: See `instance`.
        is_shared: Whether other pickers are told what `LearntState.drain_deltas` returns.
    """

    random: random.Random = field(default_factory=random.Random)
    clock: Callable[[], float] = lambda: 0.0
    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("endpick.plugin"))
    registry: CollectorRegistry | None = None
    columns: ColumnWriter | None = None
    instances: Mapping[str, Plugin[Any]] = field(default_factory=dict)
    is_shared: bool = False

    def instance(self, name: str, kind: Callable[..., K]) -> K:
        """The instance named by a parameter marked `RefersTo(kind)`. Raises ConfigurationError if none names it."""
        found = self.instances.get(name)
        if not isinstance(found, cast("type[Any]", kind)):
            raise ConfigurationError(f"'{name}' is not an instance that a parameter refers to as {kind}")
        return cast("K", found)


P = TypeVar("P", bound=Parameters, default=Parameters)
K = TypeVar("K", bound="Plugin[Any]")


MAX_DUMPED = 100


class Plugin(Generic[P]):
    """Base of all kinds. Subclass a kind (`Scorer`, `Filter`, …), not this.

    The entry point names the type, its group the API version, and the generic argument the parameters:
    `class QueueScorer(Scorer[QueueParameters])`.

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
    """Data keys the plugin writes."""

    parameters_schema: ClassVar[Mapping[str, object] | None] = None
    """A JSON Schema for `parameters:`, in addition to the model. No remote `$ref`."""

    ignores_parameters: ClassVar[bool] = False
    """For llm-d plugins that ignore any parameters: they cause warnings instead of errors."""

    stability: ClassVar[Stability] = Stability.STABLE
    replaced_by: ClassVar[str | None] = None
    """For a deprecated plugin: the type to use instead."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Former type names, accepted with a warning. Each has its own entry point."""

    tolerated_age_seconds: float | None = None
    """Age at which endpoint data is stale for the instance, or None. Idle endpoints are polled at least twice within it."""

    def __init__(self, name: str, parameters: P, context: PluginContext) -> None:
        """Subclasses call this first. Raises ConfigurationError if the parameters cannot work together."""
        self.name = name
        self.parameters = parameters
        self.context = context

    @classmethod
    def subscriptions(cls, parameters: P) -> Subscriptions:
        """Data keys of an instance; override if they depend on parameters. Called before any instance exists."""
        return Subscriptions(cls.consumes, cls.consumes_optional, cls.produces)

    async def start(self) -> None:
        """Open sessions and files. Called once before traffic, in configuration order. A ConfigurationError ends start-up."""

    async def stop(self) -> None:
        """Release everything. Called after the last request, in reverse order."""

    def dump_state(self) -> object:
        """What the instance has learnt, for `GET /debug/plugins/state`: JSON with at most `MAX_DUMPED` entries of each list.

        Never prompts or credentials.
        """
        return None

    def endpoint_removed(self, name: str) -> None:
        """Forget state about an endpoint. Called with `Endpoint.name` after it left the pool or its model server restarted."""


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
