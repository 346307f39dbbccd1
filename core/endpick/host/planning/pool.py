"""Resolves endpoint discovery, from the document or the flags of `serve`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from endpick.api.discovery import EndpointDiscovery
from endpick.config import LoadedConfig
from endpick.diagnostics import Code, Diagnostic, DocumentPath, Span
from endpick.host.planning.builder import DraftInstance, PlanBuilder, add_instance, look_up_kind

DEFAULT_DISCOVERY = "file-discovery"
POOL_DISCOVERY = "kubernetes-discovery"
FOLLOWERS_GATE = "haPopulateNonLeaderDatastore"
MAX_TARGET_PORTS = 8
_MAX_PORT = 65535


class PoolSettingsError(ValueError):
    """Raised for contradictory or invalid pool flags; the message goes to the user."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The pool flags of llm-d; a flag that is not given is empty."""

    name: str = ""
    namespace: str = ""  # of pool and Pods
    group: str = ""  # of the pool
    selector: str = ""  # of Pods, without a pool
    target_ports: tuple[int, ...] = ()  # of selected Pods
    kubeconfig: str = ""  # path
    leader_election: bool = False  # through a Lease
    leader_label: str = ""  # of the leader's Pod

    def __post_init__(self) -> None:
        if self.name and self.selector:
            raise PoolSettingsError("give --pool-name or --endpoint-selector, not both: the one names a pool, the other does without")
        if self.selector and not 1 <= len(self.target_ports) <= MAX_TARGET_PORTS:
            raise PoolSettingsError(f"--endpoint-selector needs 1 to {MAX_TARGET_PORTS} ports in --endpoint-target-ports")

    @property
    def names_a_pool(self) -> bool:
        """True if the flags select Pods."""
        return bool(self.name or self.selector)

    def parameters(self) -> dict[str, object]:
        """Return the `parameters:` of the discovery, from given flags only."""
        given: dict[str, object] = {
            "poolName": self.name,
            "poolNamespace": self.namespace,
            "poolGroup": self.group,
            "endpointSelector": self.selector,
            "endpointTargetPorts": list(self.target_ports),
            "kubeconfig": self.kubeconfig,
            "leaderElection": self.leader_election,
            "leaderLabel": self.leader_label,
        }
        return {name: value for name, value in given.items() if value}


NO_POOL = PoolSettings()


def _add_pool_discovery(pool: PoolSettings, builder: PlanBuilder) -> str | None:
    if not pool.names_a_pool:
        return None
    flag = f"--pool-name {pool.name}" if pool.name else f"--endpoint-selector '{pool.selector}'"
    reason = f"{flag} is given, and dataLayer.discovery.endpoints names none"
    # Meaningless without leader election.
    followers = {} if builder.config.gates[FOLLOWERS_GATE] or not pool.leader_election else {"populateFollowers": False}
    return add_instance(builder, POOL_DISCOVERY, reason, "endpoint discovery", pool.parameters() | followers).name


def target_ports(given: Sequence[str]) -> tuple[int, ...]:
    """Parse `--endpoint-target-ports`, whose values may be lists; no duplicates. Raises PoolSettingsError."""
    words = [word.strip() for text in given for word in text.split(",")]
    for word in words:
        if not (word.isascii() and word.isdigit() and int(word) <= _MAX_PORT):
            raise PoolSettingsError(f"'{word}' in --endpoint-target-ports is no port; write for example 8000,8001")
    return tuple(dict.fromkeys(int(word) for word in words))


def plan_discovery(builder: PlanBuilder, pool: PoolSettings) -> str | None:
    """Return the discovery of the document, of `--endpoints` or of the pool flags."""
    layer = builder.config.data_layer
    reference = None if layer is None else layer.discovery_ref
    if reference is not None:
        name, path = reference
        if builder.endpoints_file is not None:
            builder.report(
                Code.W0204,
                f"--endpoints has no effect: the configuration names the discovery '{name}'",
                path,
                help="remove the flag, or the discovery",
            )
        named = look_up_kind(name, path, EndpointDiscovery, builder)
        if named is not None:
            _report_idle_flags(named, path, pool, builder)
        return None if named is None else named.name
    if builder.loaded.is_damaged(("dataLayer",)):
        return None
    if builder.endpoints_file is None:
        return _add_pool_discovery(pool, builder)
    reason = f"--endpoints names {builder.endpoints_file}, and the document names no discovery"
    parameters = {"path": str(builder.endpoints_file.absolute()), "watchFile": True}
    return add_instance(builder, DEFAULT_DISCOVERY, reason, "discovery", parameters).name


def _report_idle_flags(named: DraftInstance, path: DocumentPath, pool: PoolSettings, builder: PlanBuilder) -> None:
    elects = named.type == POOL_DISCOVERY
    given = {"--ha-enable-leader-election": ("leaderElection", "true")} if elects and pool.leader_election else {}
    if pool.leader_label:
        given["--ha-leader-label"] = ("leaderLabel", pool.leader_label)
    for flag, (parameter, value) in given.items():
        if parameter not in named.place.block():
            builder.report(
                Code.W0204,
                f"{flag} has no effect: the configuration names the discovery '{named.name}' without it",
                path,
                help=f"write `{parameter}: {value}` into the parameters of '{named.name}'" if elects else "remove the flag",
            )


def discovery_by_flags(loaded: LoadedConfig) -> Diagnostic | None:
    """Return a note if the document leaves the discovery to flags of `serve`."""
    missing = missing_discovery(loaded)
    return missing and replace(
        missing,
        code=Code.N0801,
        message="the configuration names no endpoint discovery, and leaves it to flags",
        help="start `endpick serve` with --pool-name, --endpoint-selector or --endpoints, as here",
        notes=(),
    )


def missing_discovery(loaded: LoadedConfig) -> Diagnostic | None:
    """Return the error for a missing discovery; None if a mistake may have hidden it."""
    layer = None if loaded.config is None else loaded.config.data_layer
    damaged = loaded.config is None or loaded.is_damaged(("dataLayer",))
    if damaged or (layer is not None and layer.discovery_ref is not None):
        return None
    path: DocumentPath = ("dataLayer",)
    return Diagnostic(
        Code.E0806,
        "the configuration names no endpoint discovery, so there are no endpoints to route to",
        span=loaded.source.key_span(path) if path in loaded.source else Span.start_of(loaded.path),
        help="name one at `dataLayer.discovery.endpoints`, for example file-discovery, or give a file of endpoints with --endpoints",
        notes=("llm-d finds the endpoints of such a configuration in Kubernetes, by its flags --pool-name or --endpoint-selector",),
        path=path if path in loaded.source else (),
    )
