"""Data keys: the names under which plugins exchange data."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class Scope(enum.StrEnum):
    """The owner and the lifetime of a value. Each view accepts keys of its own scopes only."""

    ENDPOINT = "endpoint"
    """One value per endpoint, kept until overwritten: a column of the endpoint table. Read it with `Endpoints`."""
    POOL = "pool"
    """One value for the whole pool, kept until overwritten. Read it with `Endpoints.pool`."""
    REQUEST = "request"
    """One value per request, dropped when its response ends. Read it with `ScoringState.get`."""
    CANDIDATE = "candidate"
    """One number per request and candidate endpoint. Read it with `ScoringState.column`."""


class AnyKey(Protocol):
    """A data key of any value type, as in `Plugin.consumes`. `DataKey` implements it."""

    @property
    def name(self) -> str:
        """The name of the key. Two keys with the same name are the same key."""

    @property
    def type(self) -> type[object]:
        """The type of the values; `float` makes a float64 column."""

    @property
    def scope(self) -> Scope:
        """The owner and the lifetime of the values."""

    @property
    def doc(self) -> str:
        """One sentence with unit and range. `endpick describe` prints it."""

    @property
    def default_producer(self) -> str | None:
        """The plugin type that the planner adds if a required key has no producer, or None."""

    @property
    def producer(self) -> str:
        """The instance that must produce the values; empty for the only producer of the key."""

    @property
    def has_substitute(self) -> bool:
        """True if consumers work without the values. The planner does not warn if they are missing."""

    @property
    def max_age_seconds(self) -> float:
        """Seconds after which a consumer finds a value missing; infinite without a limit."""

    @property
    def is_shared(self) -> bool:
        """True if another instance may produce the key, too. `DataKey.beside_others` sets it."""

    @property
    def is_number(self) -> bool:
        """True if `type` is `float`. Missing values are then NaN, else None or the default."""

    def no_older_than(self, seconds: float) -> AnyKey:
        """Return the key with a maximum age in seconds. See `DataKey.no_older_than`."""


@dataclass(frozen=True, slots=True, eq=False)
class DataKey(Generic[T]):
    """The name, type and scope of one kind of data.

    Keys are compared by name. The planner refuses a configuration in which a producer and a consumer of one name differ in type or scope.

    Attributes:
        name: Namespaced for third parties (`acme.example/gpu-temperature`); endpick's own keys have no namespace.
        type: `float` makes a float64 column with NaN for missing values; any other type an object column with None.
        scope: The owner and the lifetime of the values.
        doc: One sentence with unit and range, for `endpick describe` and the reference.
        default: Value of `REQUEST` and `POOL` keys before the first write.
        default_producer: Plugin type that the planner adds if a required key has no producer.
        producer: Instance that must produce the values; empty for the key's only producer. `from_producer` sets it.
        has_substitute: Consumers work without the values, so the planner does not warn about a missing producer.
        max_age_seconds: Seconds after which a consumer finds a value missing. `no_older_than` sets it.
        is_shared: Another instance may produce the key, too. `beside_others` sets it.
        is_number: True if `type` is `float`. Computed.
    """

    name: str
    type: type[T]
    scope: Scope = Scope.ENDPOINT
    doc: str = ""
    default: T | None = None
    default_producer: str | None = None
    producer: str = ""
    has_substitute: bool = False
    max_age_seconds: float = math.inf
    is_shared: bool = False
    is_number: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_number", self.type is float)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DataKey) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def shared_name(self) -> str:
        """The key's name without the suffix `@instance` that `from_producer` adds."""
        return self.name.removesuffix(f"@{self.producer}") if self.producer else self.name

    def from_producer(self, instance: str) -> DataKey[T]:
        """Return the key for the values of one producer, with the name `name@instance`.

        For consumers with a parameter that names a producer. Put the key into `consumes` or `consumes_optional`, and read with it. Returns
        the key itself if `instance` is empty or already the key's producer.
        """
        if not instance or instance == self.producer:
            return self
        return replace(self, name=f"{self.name}@{instance}", producer=instance, default_producer=None)

    def beside_others(self) -> DataKey[T]:
        """Return the key for a second producer. Put it into `produces`, and write with it.

        For endpoint data that arrives in two ways, such as polls and response headers. The latest value counts; a poll does not overwrite a
        value written while the poll was under way.

        Raises:
            ValueError: The scope is not `ENDPOINT`.
        """
        if self.scope is not Scope.ENDPOINT:
            raise ValueError(f"'{self.name}' has scope '{self.scope}': only endpoint data can have two producers")
        return replace(self, is_shared=True)

    def no_older_than(self, seconds: float) -> DataKey[T]:
        """Return the key with a maximum age. Put it into `consumes` or `consumes_optional`.

        The instance then finds older values missing: NaN, None or the default. Applies to scopes `ENDPOINT` and `POOL`. The shorter of two
        limits holds.

        Raises:
            ValueError: The age is not positive, or the scope is `REQUEST` or `CANDIDATE`.
        """
        if not seconds > 0:
            raise ValueError(f"'{self.name}' cannot be asked for values no older than {seconds:g} s: the age must be positive")
        if self.scope not in (Scope.ENDPOINT, Scope.POOL):
            raise ValueError(f"'{self.name}' has scope '{self.scope}': its values have no age")
        return replace(self, max_age_seconds=min(seconds, self.max_age_seconds))


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """The data keys of one configured instance, returned by `Plugin.subscriptions`.

    The planner uses them to find producers, order them, and restrict the instance's reads and writes.

    Attributes:
        consumes: Required keys. Without a producer the planner adds the default producer, or refuses the configuration.
        consumes_optional: Keys that may have no producer. Reads then return NaN, None or the default.
        produces: Keys that the instance writes. It may also read them.
    """

    consumes: tuple[AnyKey, ...] = ()
    consumes_optional: tuple[AnyKey, ...] = ()
    produces: tuple[AnyKey, ...] = ()

    @property
    def max_ages(self) -> dict[str, float]:
        """The maximum age in seconds of each key with a limit, by key name."""
        limits: dict[str, float] = {}
        for key in (*self.consumes, *self.consumes_optional):
            if key.max_age_seconds < limits.get(key.name, math.inf):
                limits[key.name] = key.max_age_seconds
        return limits

    def no_older_than(self, seconds: float) -> Subscriptions:
        """Return the subscriptions with a maximum age in seconds for every consumed value.

        Applies to keys of scope `ENDPOINT` and `POOL`; other keys stay as they are. Raises ValueError if the age is not positive.
        """
        return replace(self, consumes=_limited(self.consumes, seconds), consumes_optional=_limited(self.consumes_optional, seconds))


def _limited(keys: tuple[AnyKey, ...], seconds: float) -> tuple[AnyKey, ...]:
    return tuple(key.no_older_than(seconds) if key.scope in (Scope.ENDPOINT, Scope.POOL) else key for key in keys)
