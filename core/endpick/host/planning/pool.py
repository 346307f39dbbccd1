"""The pool that flags name: which discovery follows from them for a document that names none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from endpick.diagnostics import Code
from endpick.host.catalog import PluginCatalog
from endpick.host.planning.builder import DraftInstance, PlanBuilder
from endpick.host.planning.instances import add_instance

POOL_DISCOVERY = "kubernetes-discovery"
FOLLOWERS_GATE = "haPopulateNonLeaderDatastore"
MAX_TARGET_PORTS = 8
_MAX_PORT = 65535


class PoolSettingsError(ValueError):
    """The flags contradict each other, or one makes no sense; the message says which."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What flags say of the pool, under the names of llm-d's flags; empty where they say nothing.

    Attributes:
        name: Of the InferencePool.
        namespace: Of the pool and its Pods.
        group: API group of the InferencePool.
        selector: Label selector of the Pods, where there is no pool.
        target_ports: Of each Pod that the selector finds.
        kubeconfig: File that says where the API server is.
        leader_election: Whether one of several replicas is to serve, and which, is agreed by a Lease.
    """

    name: str = ""
    namespace: str = ""
    group: str = ""
    selector: str = ""
    target_ports: tuple[int, ...] = ()
    kubeconfig: str = ""
    leader_election: bool = False

    def __post_init__(self) -> None:
        """Raise PoolSettingsError where the flags contradict each other."""
        if self.name and self.selector:
            raise PoolSettingsError("give --pool-name or --endpoint-selector, not both: the one names a pool, the other does without")
        if self.selector and not 1 <= len(self.target_ports) <= MAX_TARGET_PORTS:
            raise PoolSettingsError(f"--endpoint-selector needs 1 to {MAX_TARGET_PORTS} ports in --endpoint-target-ports")

    @property
    def names_a_pool(self) -> bool:
        """Whether they say which Pods are meant."""
        return bool(self.name or self.selector)

    def parameters(self) -> dict[str, object]:
        """The `parameters:` block of the discovery; what the flags leave open is left to its defaults."""
        given: dict[str, object] = {
            "poolName": self.name,
            "poolNamespace": self.namespace,
            "poolGroup": self.group,
            "endpointSelector": self.selector,
            "endpointTargetPorts": list(self.target_ports),
            "kubeconfig": self.kubeconfig,
            "leaderElection": self.leader_election,
        }
        return {name: value for name, value in given.items() if value}


NO_POOL = PoolSettings()


def add_pool_discovery(pool: PoolSettings, builder: PlanBuilder, installed: PluginCatalog) -> str | None:
    """The name of the discovery that follows from flags, added to the draft; None where they name no pool."""
    if not pool.names_a_pool:
        return None
    flag = f"--pool-name {pool.name}" if pool.name else f"--endpoint-selector '{pool.selector}'"
    reason = f"{flag} is given, and dataLayer.discovery names none"
    builder.announce(Code.N0501, POOL_DISCOVERY, f"added endpoint discovery '{POOL_DISCOVERY}': {reason}")
    # The gate is on by default, and says nothing where every replica serves.
    followers = {} if builder.config.gates[FOLLOWERS_GATE] or not pool.leader_election else {"populateFollowers": False}
    return add_instance(builder, installed, POOL_DISCOVERY, reason, pool.parameters() | followers).name


def says_nothing_of_election(pool: PoolSettings, named: DraftInstance) -> bool:
    """Whether flags ask for leader election, and the discovery that the document names has nothing to do with it."""
    parameters = (None if named.spec is None else named.spec.parameters) or {}
    return pool.leader_election and named.type == POOL_DISCOVERY and "leaderElection" not in parameters


def target_ports(given: Sequence[str]) -> tuple[int, ...]:
    """The ports of `--endpoint-target-ports`, which may be repeated or list several; each once, in the order given.

    Raises:
        PoolSettingsError: one of them is no port.
    """
    words = [word.strip() for text in given for word in text.split(",")]
    for word in words:
        if not (word.isascii() and word.isdigit() and int(word) <= _MAX_PORT):
            raise PoolSettingsError(f"'{word}' in --endpoint-target-ports is no port; write for example 8000,8001")
    return tuple(dict.fromkeys(int(word) for word in words))
