"""Resolves the state store, from the document or `--state-url`."""

from __future__ import annotations

from urllib.parse import urlsplit

from endpick.api.discovery import PeerDiscovery
from endpick.api.fleet import StateStore
from endpick.config.shape import show_path
from endpick.diagnostics import Code
from endpick.host.planning.builder import PlanBuilder, add_instance, look_up_kind
from endpick.host.planning.plan import FleetPlan
from endpick.host.planning.pool import PoolSettings

VALKEY_STORE = "valkey-state-store"
FILE_STORE = "file-state-store"
LOCAL_STORE = "local-state-store"


def plan_fleet(builder: PlanBuilder, state_url: str, pool: PoolSettings) -> FleetPlan | None:
    """Return the state store of the document, else of `--state-url`, or None."""
    layer = builder.config.data_layer
    peers, syncer = (None, None) if layer is None else (layer.peers_ref, layer.syncer_ref)
    if peers is not None:
        if peers[0] not in builder.skipped:
            look_up_kind(*peers, PeerDiscovery, builder)
        builder.report(
            Code.N0502,
            f"pickers reach each other through the state store, so '{show_path(peers[1])}' only counts them",
            peers[1],
            help="nothing to repair; to share what pickers learn, name a store at `dataLayer.crossReplica.syncerPluginRef`",
        )
    if syncer is None:
        return _by_url(builder, state_url, pool) if state_url else None
    name, path = syncer
    if state_url:
        builder.report(
            Code.W0204,
            f"--state-url has no effect: the configuration names the store '{name}'",
            path,
            help="remove the flag, or the store",
        )
    if name in builder.skipped or look_up_kind(name, path, StateStore, builder) is None:
        return None
    assert layer is not None
    return FleetPlan(name, layer.sync_interval, layer.publish_timeout)


def _by_url(builder: PlanBuilder, state_url: str, pool: PoolSettings) -> FleetPlan:
    reason = "--state-url is given, and dataLayer.crossReplica names no store"
    parts = urlsplit(state_url)
    if parts.scheme == "file":
        added = add_instance(builder, FILE_STORE, reason, "state store", {"path": parts.path})
    elif parts.scheme == "local":
        added = add_instance(builder, LOCAL_STORE, reason, "state store", {"folder": parts.path})
    else:
        fleet = {"fleet": pool.name} if pool.name else {}
        added = add_instance(builder, VALKEY_STORE, reason, "state store", {"url": state_url, **fleet})
    return FleetPlan(added.name)
