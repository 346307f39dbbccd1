"""Reads the objects of the API server."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from endpick.api import Endpoint
from endpick.api.discovery import ModelRewrite, ModelTarget

Object: TypeAlias = Mapping[str, Any]

POOL_GROUP = "inference.networking.k8s.io"
OLD_POOL_GROUP = "inference.networking.x-k8s.io"
ACTIVE_PORTS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")  # the first one present counts
_LEADING_NUMBER = re.compile(r"\s*\+?(\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Pool:
    """Each Pod with all these labels is an endpoint per port."""

    selector: Mapping[str, str]
    ports: tuple[int, ...]

    @property
    def label_selector(self) -> str:
        return ",".join(f"{label}={value}" for label, value in self.selector.items())


@dataclass(frozen=True, slots=True)
class Pod:
    """A ready Pod; `active_ports` None is all."""

    name: str
    ip: str
    labels: Mapping[str, str]
    active_ports: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class PoolName:
    """The pool that objectives and rewrites refer to."""

    group: str
    name: str

    def is_referenced_by(self, item: Object) -> bool:
        """True if `poolRef` names this pool, by default in the current group."""
        reference = item["spec"]["poolRef"]
        return bool(reference["name"] == self.name and (reference.get("group") or POOL_GROUP) == self.group)


@dataclass(frozen=True, slots=True)
class DatedRewrites:
    """Rules of one InferenceModelRewrite; older objects take precedence."""

    created: str
    rules: tuple[ModelRewrite, ...]


def read_pool(item: Object) -> Pool | None:
    """None if the pool is being deleted or selects every Pod."""
    if _is_terminating(item):
        return None
    spec = item["spec"]
    labels = spec["selector"].get("matchLabels", spec["selector"])
    ports = [port["number"] for port in spec.get("targetPorts", ())] or [spec["targetPortNumber"]]
    return Pool(labels, tuple(dict.fromkeys(ports))) if labels else None


def read_pod(item: Object) -> Pod | None:
    """None unless the Pod is ready, has an address and is not being deleted."""
    metadata, status = item["metadata"], item.get("status") or {}
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in status.get("conditions") or ())
    if _is_terminating(item) or not ready or not status.get("podIP"):
        return None
    annotations = metadata.get("annotations") or {}
    active = next((annotations[key] for key in ACTIVE_PORTS if key in annotations), None)
    return Pod(
        metadata["name"],
        status["podIP"],
        metadata.get("labels") or {},
        None if active is None else frozenset(_numbers(active)),
    )


def endpoints_of(pods: Iterable[Pod], ports: tuple[int, ...], namespace: str) -> Iterator[Endpoint]:
    """One per Pod and port, `namespace/pod-rank-N` with the port's index, as in llm-d."""
    for pod in pods:
        for rank, port in enumerate(ports):
            if pod.active_ports is None or port in pod.active_ports:
                yield Endpoint(f"{namespace}/{pod.name}-rank-{rank}", pod.ip, port, pod.labels)


def read_objective(item: Object, pool: PoolName) -> int | None:
    """The priority, or None if it does not apply."""
    if _is_terminating(item) or not pool.is_referenced_by(item):
        return None
    return int(item["spec"].get("priority") or 0)


def read_rewrites(item: Object, pool: PoolName) -> DatedRewrites | None:
    """The rules, or None if they do not apply."""
    if _is_terminating(item) or not pool.is_referenced_by(item):
        return None
    rules = tuple(_rule(rule) for rule in item["spec"].get("rules") or ())
    return DatedRewrites(item["metadata"].get("creationTimestamp", ""), rules)


def rules_in_order(rewrites: Mapping[str, DatedRewrites]) -> Iterator[ModelRewrite]:
    """All rules, oldest object first, then by name."""
    for _, dated in sorted(rewrites.items(), key=lambda entry: (entry[1].created, entry[0])):
        yield from dated.rules


def _rule(rule: Object) -> ModelRewrite:
    models = tuple(match["model"]["value"] for match in rule.get("matches") or () if match.get("model"))
    return ModelRewrite(
        models, tuple(ModelTarget(target["modelRewrite"], target.get("weight") or 0) for target in rule.get("targets") or ())
    )


def _numbers(text: str) -> Iterator[int]:
    """The leading number of each comma-separated part, as in llm-d: `8000abc` is 8000."""
    for part in text.split(","):
        match = _LEADING_NUMBER.match(part)
        if match:
            yield int(match[1])


def _is_terminating(item: Object) -> bool:
    return "deletionTimestamp" in item["metadata"]
