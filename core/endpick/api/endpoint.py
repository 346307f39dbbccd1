"""An endpoint, as discovery describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


def _no_labels() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """One address that serves a model. Compared by identity; `name` is what survives updates and restarts.

    Attributes:
        name: `namespace/name`, unique in the pool. Learnt state belongs under this name.
        host: IP address without brackets.
        port: TCP port of the model server.
        labels: A read-only copy of what discovery gave; never changes (an update makes a new Endpoint).
        metrics_address: `host:port` that serves metrics; the endpoint's own address unless discovery said otherwise.
    """

    name: str
    host: str
    port: int
    labels: Mapping[str, str] = field(default_factory=_no_labels)
    metrics_address: str = ""
    address: str = field(init=False, default="")
    """`host:port`, IPv6 in brackets: what the gateway is told."""

    def __post_init__(self) -> None:
        # The same object is shown to every plugin, and its maker may keep what it was made of.
        object.__setattr__(self, "labels", MappingProxyType({**self.labels}))
        host = f"[{self.host}]" if ":" in self.host else self.host
        object.__setattr__(self, "address", f"{host}:{self.port}")
        if not self.metrics_address:
            object.__setattr__(self, "metrics_address", self.address)
