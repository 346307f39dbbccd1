"""Destinations and sidecar headers from profile runs. Compiled, so it imports no plugin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter

from prometheus_client.registry import CollectorRegistry

from endpick.api import Endpoints, InferenceRequest, LabelLimit, ProfileRunResult
from endpick.api.fast_metrics import Counts

PREFILL_HEADER = "x-prefiller-host-port"
ENCODE_HEADER = "x-encoder-hosts-ports"
DATA_PARALLEL_HEADER = "x-data-parallel-host-port"
STAGE_HEADERS = (PREFILL_HEADER, ENCODE_HEADER)

ADDRESS = attrgetter("address")

Runs = Mapping[str, ProfileRunResult]


def addresses(picked: Endpoints) -> tuple[str, ...]:
    """Return `host:port` of each endpoint, in order."""
    return tuple(map(ADDRESS, picked.members))


def picked_by(runs: Runs, profile: str) -> Endpoints | None:
    """Return the endpoints that a profile picked, or None if it did not run or failed."""
    run = runs.get(profile)
    return None if run is None else run.picked


def at_port(picked: Endpoints, port: int) -> tuple[str, ...]:
    """Return `host:port` of each endpoint, with the port of a proxy on its host."""
    return tuple(f"{address.rpartition(':')[0]}:{port}" for address in addresses(picked))


def stage_headers(prefill: Endpoints | None, encode: Endpoints | None) -> dict[str, str]:
    """Return the headers that name the other stages to the decode server's sidecar."""
    headers = {}
    if prefill is not None:
        headers[PREFILL_HEADER] = prefill.members[0].address
    if encode is not None:
        headers[ENCODE_HEADER] = ",".join(addresses(encode))
    return headers


def foreign_headers(request: InferenceRequest, names: Iterable[str], headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of client headers that must not reach the sidecar."""
    return tuple(name for name in names if name in request.headers and name not in headers)


class Decisions:
    """Counts decisions about disaggregation, by model and by the stages that found an endpoint."""

    def __init__(self, name: str, registry: CollectorRegistry | None) -> None:
        text = "Decisions about disaggregation, by the stages that found an endpoint."
        self._counts = Counts(name, text, ("model_name", "decision_type"), registry)
        self._models = LabelLimit()

    def count(self, model: str, *, prefill: bool, encode: bool) -> None:
        stages = [stage for stage, found in (("encode", encode), ("prefill", prefill)) if found]
        decision = "-".join((*stages, "decode")) if stages else "decode-only"
        self._counts.labels(self._models(model or "unknown"), decision).inc()
