"""Pools of endpoints made up for tests, kept in a real endpoint table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from endpick.api import keys
from endpick.api.data import AnyKey, DataKey, Scope
from endpick.api.endpoints import Column, Endpoint, Generation
from endpick.datalayer.table import EndpointTable

BUILT_IN_KEYS: tuple[AnyKey, ...] = tuple(value for value in vars(keys).values() if isinstance(value, DataKey))
"""The data keys that endpick defines itself."""

SERVER_PORT = 8000


def make_pool(
    columns: Mapping[AnyKey, Sequence[object]] | int = 3,
    *,
    labels: Sequence[Mapping[str, str]] = (),
    pool: Mapping[AnyKey, object] | None = None,
    keys: Iterable[AnyKey] = (),
    clock: Callable[[], float] = lambda: 0.0,
) -> EndpointTable:
    """A table of endpoints `default/e0`, `default/e1`, … at 10.0.0.1:8000, 10.0.0.2:8000 and so on.

    Args:
        columns: For each data key one value per endpoint, None for one that has not reported; or just how many endpoints.
        labels: Of the endpoints, in order; those left over have none.
        pool: Values of scope `POOL`.
        keys: Further keys that may be written later.
        clock: Monotonic seconds; everything is written at what it says now.

    Raises:
        ValueError: columns of different lengths.
    """
    values = {} if isinstance(columns, int) else columns
    sizes = {len(column) for column in values.values()}
    if len(sizes) > 1:
        raise ValueError(f"columns have different lengths: {sorted(sizes)}")
    size = columns if isinstance(columns, int) else next(iter(sizes), 0)
    table = EndpointTable(clock, (*BUILT_IN_KEYS, *values, *(pool or {}), *keys))
    table.replace_all(make_endpoint(number, labels[number] if number < len(labels) else {}) for number in range(size))
    for key, column in values.items():
        for endpoint, value in zip(table.generation.endpoints, column, strict=True):
            if value is not None:
                table.write(key, endpoint, value)
    for key, value in (pool or {}).items():
        table.write_pool(key, value)
    return table


def make_endpoint(number: int, labels: Mapping[str, str] | None = None) -> Endpoint:
    """The endpoint of that number: `default/e<number>`."""
    address = f"10.{number // 62_500}.{number // 250 % 250}.{number % 250 + 1}"
    return Endpoint(f"default/e{number}", address, SERVER_PORT, labels or {})


def unprotected(generation: Generation) -> Generation:
    """A copy whose arrays can be written to, so that a plugin that writes to them is caught and not stopped."""
    columns = {name: Column(column.values.copy(), column.written_at.copy()) for name, column in generation.columns.items()}
    return Generation(generation.endpoints, columns, dict(generation.pool), generation.clock)


def is_column(key: AnyKey) -> bool:
    """Whether values of the key live in the endpoint table, one per endpoint."""
    return key.scope is Scope.ENDPOINT
