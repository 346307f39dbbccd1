"""The Lease by which replicas agree who leads: what it says, when it may be taken, and what follows from each attempt to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType

GROUP = "coordination.k8s.io"
VERSION = "v1"
_GREATEST_COUNT = 2**31 - 1
_MOST_CHARACTERS = 1024
"""Of each text of a lease; an identity is the name of a Pod and nine more."""
_REPLICA = re.compile(r"(?P<deployment>.+)-[a-z0-9]+-[a-z0-9]+")


class Role(StrEnum):
    """What this replica is."""

    FOLLOWER = "follower"
    """Another leads, or none does yet: it stands by."""
    LEADER = "leader"
    """It serves."""
    GONE = "gone"
    """It has given up for good: the process is ending."""


class Attempt(StrEnum):
    """How one attempt to take, renew or give back the lease ended."""

    TAKEN = "taken"
    """It is ours now, and was not before."""
    RENEWED = "renewed"
    """It is ours still."""
    HELD = "held"
    """It is another's."""
    FAILED = "failed"
    """The API server did not answer as it should: whose it is stays as it was."""
    OVERDUE = "overdue"
    """It could not be renewed for so long that another may take it soon."""
    RELEASED = "released"
    """It was given back, or could not be."""


TRANSITIONS: Mapping[tuple[Role, Attempt], Role] = MappingProxyType(
    {
        (Role.FOLLOWER, Attempt.TAKEN): Role.LEADER,
        (Role.FOLLOWER, Attempt.HELD): Role.FOLLOWER,
        (Role.FOLLOWER, Attempt.FAILED): Role.FOLLOWER,
        (Role.FOLLOWER, Attempt.RELEASED): Role.GONE,
        (Role.LEADER, Attempt.RENEWED): Role.LEADER,
        (Role.LEADER, Attempt.HELD): Role.FOLLOWER,
        (Role.LEADER, Attempt.FAILED): Role.LEADER,
        (Role.LEADER, Attempt.OVERDUE): Role.FOLLOWER,
        (Role.LEADER, Attempt.RELEASED): Role.GONE,
    }
)
"""Every attempt that a role can make, and the role after it."""


@dataclass(frozen=True, slots=True)
class Lease:
    """What a Lease object says.

    Attributes:
        version: Which must still be the newest for the lease to be changed.
        holder: Identity of who holds it; empty where it was given back.
        seconds: After which it may be taken if it does not change.
        transitions: How often the holder has changed.
        acquired: When the holder took it, as the API server keeps times.
        renewed: When it was renewed last, by the holder's clock; only compared with itself, so that clocks may differ.
    """

    version: str
    holder: str
    seconds: int
    transitions: int
    acquired: str
    renewed: str


def _count(value: object) -> int:
    """A number that Kubernetes can hold, also with one added; anything else counts as none."""
    return value if isinstance(value, int) and 0 <= value < _GREATEST_COUNT else 0


def read_lease(item: Mapping[str, object]) -> Lease:
    """The lease; what is missing from it counts as nothing, so that it may be taken."""
    metadata, spec = item.get("metadata"), item.get("spec")
    metadata, spec = metadata if isinstance(metadata, Mapping) else {}, spec if isinstance(spec, Mapping) else {}
    seconds, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    return Lease(
        _text(metadata.get("resourceVersion")),
        _text(spec.get("holderIdentity")),
        _count(seconds),
        _count(transitions),
        _text(spec.get("acquireTime")),
        _text(spec.get("renewTime")),
    )


def claim(name: str, namespace: str, identity: str, seconds: int, before: Lease | None) -> dict[str, object]:
    """The object with which `identity` takes or renews a lease, or, empty, gives it back; of one that it holds only the time changes."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    keeps = before is not None and before.holder == identity
    spec: dict[str, object] = {
        **({"holderIdentity": identity} if identity else {}),  # the API server takes none that is empty
        "leaseDurationSeconds": seconds,
        "acquireTime": before.acquired if before is not None and keeps and before.acquired else now,
        "renewTime": now,
        "leaseTransitions": 0 if before is None else before.transitions + (not keeps),
    }
    metadata: dict[str, object] = {"name": name, "namespace": namespace}
    if before is not None:
        metadata["resourceVersion"] = before.version
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": "Lease", "metadata": metadata, "spec": spec}


class Observed:
    """A lease as this replica has seen it change, by a clock of its own: clocks of other replicas decide nothing."""

    def __init__(self) -> None:
        self._lease: Lease | None = None
        self._since = 0.0

    def see(self, lease: Lease | None, now: float) -> None:
        """Note what the API server says of it; None where there is none."""
        same = self._lease is not None and lease is not None and self._key(self._lease) == self._key(lease)
        if not same:
            self._since = now
        self._lease = lease

    def may_be_taken(self, identity: str, now: float) -> bool:
        """Whether there is none, none holds it, we do, or its holder has not renewed it for as long as it said."""
        lease = self._lease
        return lease is None or lease.holder in ("", identity) or now - self._since >= lease.seconds

    @staticmethod
    def _key(lease: Lease) -> tuple[str, str]:
        return lease.holder, lease.renewed


def lease_name(namespace: str, pool: str, pod_name: str) -> str:
    """As llm-d names it: after the pool or, without one, after the Deployment of the Pod; all replicas share it."""
    replica = _REPLICA.fullmatch(pod_name)
    return f"epp-{namespace}-{pool or (replica['deployment'] if replica else 'endpick')}.llm-d.ai"


def _text(value: object) -> str:
    return value[:_MOST_CHARACTERS] if isinstance(value, str) else ""
