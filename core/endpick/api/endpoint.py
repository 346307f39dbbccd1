"""An endpoint as discovery describes it, and the rows and columns behind every view of endpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """One address that serves a model.

    Endpoints are compared by identity: an update makes a new object. `name` survives updates and restarts.

    Attributes:
        name: `namespace/name`, unique in the pool.
        host: IP address without brackets.
        port: TCP port of the model server.
        labels: Labels from discovery, read-only.
        metrics_address: `host:port` that serves metrics; defaults to the endpoint's own address.
        address: `host:port` for the gateway, with IPv6 in brackets. Computed.
    """

    name: str
    host: str
    port: int
    labels: Mapping[str, str] = field(default_factory=dict)
    metrics_address: str = ""
    address: str = field(init=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", MappingProxyType(dict(self.labels)))
        host = f"[{self.host}]" if ":" in self.host else self.host
        object.__setattr__(self, "address", f"{host}:{self.port}")
        if not self.metrics_address:
            object.__setattr__(self, "metrics_address", self.address)


@dataclass(frozen=True, slots=True)
class Column:
    """The read-only values of one data key, one per row.

    Attributes:
        values: float64 for numeric keys, object otherwise.
        written_at: Monotonic seconds; -inf if never written.
        derived: Results of `Endpoints.derived`; emptied when a value changes.
    """

    values: NDArray[np.float64] | NDArray[np.object_]
    written_at: NDArray[np.float64]
    derived: dict[object, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """The endpoint table between two membership changes. Rows never change; values change in place."""

    endpoints: tuple[Endpoint, ...]
    columns: Mapping[str, Column]
    pool: Mapping[str, object]
    clock: Callable[[], float]
    pool_written_at: Mapping[str, float] = field(default_factory=dict)
    row_of: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_of", {endpoint.name: row for row, endpoint in enumerate(self.endpoints)})
