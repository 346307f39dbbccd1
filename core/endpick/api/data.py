"""Data keys: the names under which plugins leave data for one another."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class Scope(enum.StrEnum):
    """How long a value lives and what it belongs to."""

    ENDPOINT = "endpoint"
    """One value per endpoint, kept until overwritten: a column of the endpoint table."""
    POOL = "pool"
    """One value for the whole pool, for data that belongs to no endpoint."""
    REQUEST = "request"
    """One value per request: a typed slot in the cycle state."""
    CANDIDATE = "candidate"
    """One number per request and candidate endpoint: a column that lives as long as the request."""


class AnyKey(Protocol):
    """A data key whatever the type of its values: what declarations and the subscription graph need to know."""

    @property
    def name(self) -> str:
        """See `DataKey`."""

    @property
    def type(self) -> type[object]:
        """See `DataKey`."""

    @property
    def scope(self) -> Scope:
        """See `DataKey`."""

    @property
    def doc(self) -> str:
        """See `DataKey`."""

    @property
    def default_producer(self) -> str | None:
        """See `DataKey`."""

    @property
    def producer(self) -> str:
        """See `DataKey`."""

    @property
    def has_substitute(self) -> bool:
        """See `DataKey`."""

    @property
    def max_age_seconds(self) -> float:
        """See `DataKey`."""

    @property
    def is_shared(self) -> bool:
        """See `DataKey`."""

    def no_older_than(self, seconds: float) -> AnyKey:
        """See `DataKey`."""

    @property
    def is_number(self) -> bool:
        """See `DataKey`."""


@dataclass(frozen=True, slots=True, eq=False)
class DataKey(Generic[T]):
    """The name, type and scope of one kind of data.

    Keys are compared by name, so two distributions may each define the same key; the host refuses to start when their
    types or scopes differ.

    Attributes:
        name: Namespaced for third parties (`acme.example/gpu-temperature`); endpick's own keys have no namespace.
        type: Python type of a value. `float` makes a numeric column (float64, NaN until first reported); any other type an object column.
        scope: See `Scope`.
        doc: One sentence for `endpick describe` and the reference: what it is, its unit and range.
        default: What `REQUEST` and `POOL` readers get while no instance has written; columns start at NaN (numbers) or None (objects).
        default_producer: Plugin type that the host adds, and announces, when a required key has no producer.
        producer: Instance name the value must come from; empty for the key's one producer.
        has_substitute: True where readers have something else to go by while no instance writes it: its absence is worth no warning.
        max_age_seconds: What `no_older_than` was called with; no matter to those who write.
        is_shared: True for what `beside_others` gives; no matter to those who read.
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
    """True for float64 columns: the type is `float`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_number", self.type is float)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DataKey) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def shared_name(self) -> str:
        """The name whichever instance produces it: what `from_producer` was called on."""
        return self.name.removesuffix(f"@{self.producer}") if self.producer else self.name

    def from_producer(self, instance: str) -> DataKey[T]:
        """The same data as produced by one particular instance; returns the key itself when `instance` is empty.

        For parameters such as `prefixMatchInfoProducerName`, with which an operator chooses among several producers of one kind of data.
        """
        if not instance or instance == self.producer:
            return self
        return replace(self, name=f"{self.name}@{instance}", producer=instance, default_producer=None)

    def beside_others(self) -> DataKey[T]:
        """The same data, written by one instance beside another that produces it: put into `produces`, and write with it.

        For what comes by another way as well, and fresher: what model servers tell in their answers, beside what their metrics page says.
        The latest value counts. What an answer told while a poll was under way is not overwritten by that poll, and endpoints that keep
        telling what plugins must have are polled less often meanwhile. Only for scope `ENDPOINT`.

        Raises:
            ValueError: the key has another scope.
        """
        if self.scope is not Scope.ENDPOINT:
            raise ValueError(f"'{self.name}' has scope '{self.scope}': only what belongs to endpoints can have two producers")
        return replace(self, is_shared=True)

    def no_older_than(self, seconds: float) -> DataKey[T]:
        """The same data as long as it is fresh: put into `consumes` or `consumes_optional`, it turns older values into missing ones.

        For that plugin alone, and however it reads the key: NaN, None or the key's default is what it gets for a value that was written
        more than so many seconds ago. Only for scopes `ENDPOINT` and `POOL`: other data does not outlive its request. Of two limits the
        shorter holds.

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
    """The data keys one configured instance reads and writes, proven consistent before the host serves."""

    consumes: tuple[AnyKey, ...] = ()
    """Required: the host refuses to start, or adds a default producer, when no instance writes it."""
    consumes_optional: tuple[AnyKey, ...] = ()
    """Used when an instance writes it; reads give NaN, None or the default otherwise."""
    produces: tuple[AnyKey, ...] = ()

    @property
    def max_ages(self) -> dict[str, float]:
        """How old a value may be before the instance gets none in its place, in seconds by key; keys without a limit are left out."""
        limits: dict[str, float] = {}
        for key in (*self.consumes, *self.consumes_optional):
            if key.max_age_seconds < limits.get(key.name, math.inf):
                limits[key.name] = key.max_age_seconds
        return limits

    def no_older_than(self, seconds: float) -> Subscriptions:
        """The same with a limit to the age of all that is read and has one; see `DataKey.no_older_than`."""
        return replace(self, consumes=_limited(self.consumes, seconds), consumes_optional=_limited(self.consumes_optional, seconds))


def _limited(keys: tuple[AnyKey, ...], seconds: float) -> tuple[AnyKey, ...]:
    return tuple(key.no_older_than(seconds) if key.scope in (Scope.ENDPOINT, Scope.POOL) else key for key in keys)
