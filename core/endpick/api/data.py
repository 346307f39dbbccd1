"""Data keys: the names under which plugins exchange data."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class Scope(enum.StrEnum):
    """Owner and lifetime of a value."""

    ENDPOINT = "endpoint"
    """One value per endpoint, kept until overwritten: a column of the endpoint table."""
    POOL = "pool"
    """One value for the whole pool."""
    REQUEST = "request"
    """One value per request."""
    CANDIDATE = "candidate"
    """One number per request and candidate endpoint."""


class AnyKey(Protocol):
    """A data key of any value type. `DataKey` documents the attributes."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def type(self) -> type[object]: ...  # noqa: D102
    @property
    def scope(self) -> Scope: ...  # noqa: D102
    @property
    def doc(self) -> str: ...  # noqa: D102
    @property
    def default_producer(self) -> str | None: ...  # noqa: D102
    @property
    def producer(self) -> str: ...  # noqa: D102
    @property
    def has_substitute(self) -> bool: ...  # noqa: D102
    @property
    def max_age_seconds(self) -> float: ...  # noqa: D102
    @property
    def is_shared(self) -> bool: ...  # noqa: D102
    @property
    def is_number(self) -> bool: ...  # noqa: D102
    def no_older_than(self, seconds: float) -> AnyKey:
        """See `DataKey.no_older_than`."""


@dataclass(frozen=True, slots=True, eq=False)
class DataKey(Generic[T]):
    """The name, type and scope of one kind of data.

    Keys are compared by name. The host refuses to start if two of one name differ in type or scope.

    Attributes:
        name: Namespaced for third parties (`acme.example/gpu-temperature`); endpick's own keys have no namespace.
        type: `float` makes a float64 column with NaN for missing values; any other type an object column.
        doc: One sentence with unit and range, for `endpick describe` and the reference.
        default: Value of `REQUEST` and `POOL` keys before the first write.
        default_producer: Plugin type to add when a required key has no producer.
        producer: Instance name the value must come from; empty for the key's only producer.
        has_substitute: Readers cope without it, so a missing producer is no warning.
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
        """The name without the producer that `from_producer` added."""
        return self.name.removesuffix(f"@{self.producer}") if self.producer else self.name

    def from_producer(self, instance: str) -> DataKey[T]:
        """The same data from one instance, if there are several producers; the key itself if `instance` is empty."""
        if not instance or instance == self.producer:
            return self
        return replace(self, name=f"{self.name}@{instance}", producer=instance, default_producer=None)

    def beside_others(self) -> DataKey[T]:
        """The same key for a second producer, for data that arrives in two ways. Put it into `produces` and write with it.

        The latest value counts; a poll does not overwrite a value written while it was under way.

        Raises:
            ValueError: the scope is not `ENDPOINT`.
        """
        if self.scope is not Scope.ENDPOINT:
            raise ValueError(f"'{self.name}' has scope '{self.scope}': only endpoint data can have two producers")
        return replace(self, is_shared=True)

    def no_older_than(self, seconds: float) -> DataKey[T]:
        """The same key with a maximum age. Put it into `consumes` or `consumes_optional`.

        The plugin then finds older values missing. For scopes `ENDPOINT` and `POOL`; the shorter of two limits holds.

        Raises:
            ValueError: the age is not positive, or the key's values belong to a request.
        """
        if not seconds > 0:
            raise ValueError(f"'{self.name}' cannot be asked for values no older than {seconds:g} s: the age must be positive")
        if self.scope not in (Scope.ENDPOINT, Scope.POOL):
            raise ValueError(f"'{self.name}' has scope '{self.scope}': its values have no age")
        return replace(self, max_age_seconds=min(seconds, self.max_age_seconds))


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """The data keys of one configured instance.

    Attributes:
        consumes: Required keys. Without a producer the host adds the default producer, or refuses to start.
    """

    consumes: tuple[AnyKey, ...] = ()
    consumes_optional: tuple[AnyKey, ...] = ()
    produces: tuple[AnyKey, ...] = ()

    @property
    def max_ages(self) -> dict[str, float]:
        """Maximum age in seconds by key name."""
        limits: dict[str, float] = {}
        for key in (*self.consumes, *self.consumes_optional):
            if key.max_age_seconds < limits.get(key.name, math.inf):
                limits[key.name] = key.max_age_seconds
        return limits

    def no_older_than(self, seconds: float) -> Subscriptions:
        """See `DataKey.no_older_than`."""
        return replace(self, consumes=_limited(self.consumes, seconds), consumes_optional=_limited(self.consumes_optional, seconds))


def _limited(keys: tuple[AnyKey, ...], seconds: float) -> tuple[AnyKey, ...]:
    return tuple(key.no_older_than(seconds) if key.scope in (Scope.ENDPOINT, Scope.POOL) else key for key in keys)
