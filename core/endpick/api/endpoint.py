"""An endpoint, as discovery describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """One address that serves a model. Compared by identity; `name` survives updates and restarts.

    Attributes:
        name: `namespace/name`, unique in the pool.
        host: IP address without brackets.
        port: TCP port of the model server.
        labels: From discovery, read-only.
        metrics_address: `host:port` that serves metrics; defaults to the endpoint's own address.
        address: `host:port` for the gateway, with IPv6 in brackets.
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
