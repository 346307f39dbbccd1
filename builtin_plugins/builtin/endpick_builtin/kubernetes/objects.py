"""What Pods, pools, objectives and rewrites say, and which endpoints follow from a pool and its Pods."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from endpick.api import Endpoint, ModelRewrite, ModelTarget
from endpick_builtin.addresses import ip_address

JSONMapping: TypeAlias = Mapping[str, object]

POOL_GROUP = "inference.networking.k8s.io"
OLD_POOL_GROUP = "inference.networking.x-k8s.io"
ACTIVE_PORTS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")
"""Annotations that name the ports of a Pod which are in use; the first that is there counts."""
MOST_LABEL_CHARACTERS = 16 * 1024
"""Of one Pod: Kubernetes takes 63 in a value, and a name has no more than 317."""
_LONGEST_TIME = 64
_MOST_PORT_CHARACTERS = 4096
"""Of an annotation that names ports."""
MOST_RULE_CHARACTERS = 16 * 1024
"""Of the models in the rules of one InferenceModelRewrite, each of which counts as `_LEAST_CHARACTERS` at least."""
_LEAST_CHARACTERS = 64
MOST_RULE_PARTS = 8192
"""Models and targets in the rules of all InferenceModelRewrites together, unless `maxRuleParts` says otherwise: each change of one has
all of them looked at."""
_GREATEST = 2**31 - 1
"""Of a priority and of a weight: Kubernetes takes no greater ones."""
_LEADING_NUMBER = re.compile(r"\s*\+?(\d{1,9})", re.ASCII)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pool:
    """An InferencePool as far as it decides who is in it: Pods with all these labels, one endpoint for each port of each."""

    selector: tuple[tuple[str, str], ...]
    ports: tuple[int, ...]

    @property
    def label_selector(self) -> str:
        """As the API server takes it."""
        return ",".join(f"{label}={value}" for label, value in self.selector)


@dataclass(frozen=True, slots=True)
class Pod:
    """A Pod that is ready, and that is not being deleted."""

    name: str
    ip: str
    labels: tuple[tuple[str, str], ...]
    active_ports: frozenset[int] | None
    """None where no annotation names any: all."""


@dataclass(frozen=True, slots=True)
class PoolName:
    """Which pool an object belongs to, by its `poolRef`."""

    group: str
    name: str

    def is_meant_by(self, item: JSONMapping) -> bool:
        """Whether the object's `poolRef` names this pool; one that names no group means the current one."""
        reference = _mapping(_mapping(item.get("spec")).get("poolRef"))
        return reference.get("name") == self.name and (reference.get("group") or POOL_GROUP) == self.group


def read_pool(item: JSONMapping) -> Pool | None:
    """The pool, of either version of its resource; None while it is being deleted, or selects nothing."""
    if _is_going(item):
        return None
    spec = _mapping(item.get("spec"))
    selector = _mapping(spec.get("selector"))
    labels = selector.get("matchLabels", selector)
    ports = [_mapping(port).get("number") for port in _list(spec.get("targetPorts"))] or [spec.get("targetPortNumber")]
    numbers = tuple(dict.fromkeys(port for port in ports if isinstance(port, int) and 0 < port <= 65535))
    pairs = _texts(labels)
    return Pool(pairs, numbers) if pairs and numbers else None


def read_pod(item: JSONMapping) -> Pod | None:
    """The Pod if requests may go to it: condition `Ready`, an address, and no time of deletion."""
    metadata, status = _mapping(item.get("metadata")), _mapping(item.get("status"))
    ip, name = status.get("podIP"), metadata.get("name")
    ready = any(_mapping(one).get("type") == "Ready" and _mapping(one).get("status") == "True" for one in _list(status.get("conditions")))
    if _is_going(item) or not ready or not isinstance(ip, str) or not _is_address(ip) or not isinstance(name, str):
        return None
    annotations = _mapping(metadata.get("annotations"))
    named = next((annotations[key] for key in ACTIVE_PORTS if key in annotations), None)
    active = None if named is None else frozenset(_ports_in(str(named)[:_MOST_PORT_CHARACTERS]))
    return Pod(name, ip, _texts(metadata.get("labels")), active)


def endpoints_of(pods: Iterable[Pod], ports: tuple[int, ...], namespace: str) -> Iterator[Endpoint]:
    """One endpoint for each port of each Pod: its number in the name is the place of the port in the pool, as in llm-d."""
    for pod in pods:
        labels = dict(pod.labels)
        for rank, port in enumerate(ports):
            if pod.active_ports is None or port in pod.active_ports:
                yield Endpoint(f"{namespace}/{pod.name}-rank-{rank}", pod.ip, port, labels)


def read_objective(item: JSONMapping, pool: PoolName) -> int | None:
    """The priority that an InferenceObjective of this pool gives; None for one of another pool, or that is being deleted."""
    if _is_going(item) or not pool.is_meant_by(item):
        return None
    priority = _mapping(item.get("spec")).get("priority")
    return max(-_GREATEST, min(priority, _GREATEST)) if isinstance(priority, int) else 0


@dataclass(frozen=True, slots=True)
class DatedRewrites:
    """The rules of one InferenceModelRewrite, and when it was created: of two rules for one model the older object's counts."""

    created: str
    rules: tuple[ModelRewrite, ...]


def read_rewrites(item: JSONMapping, pool: PoolName) -> DatedRewrites | None:
    """The rules of an InferenceModelRewrite of this pool; None for one of another pool, or that is being deleted."""
    if _is_going(item) or not pool.is_meant_by(item):
        return None
    created = _mapping(item.get("metadata")).get("creationTimestamp")
    rules: list[ModelRewrite] = []
    room = MOST_RULE_CHARACTERS
    for each in _list(_mapping(item.get("spec")).get("rules")):
        rule = _rule(_mapping(each))
        named = (*rule.models, *(target.model for target in rule.targets))
        room -= sum([max(_LEAST_CHARACTERS, len(model)) for model in named]) or _LEAST_CHARACTERS
        if room < 0:
            break
        rules.append(rule)
    return DatedRewrites(created[:_LONGEST_TIME] if isinstance(created, str) else "", tuple(rules))


def rules_in_order(rewrites: Mapping[str, DatedRewrites], most_parts: int = MOST_RULE_PARTS) -> tuple[ModelRewrite, ...]:
    """The rules of all objects, those of the oldest first; of objects of one second by name. Of more than `most_parts` the first."""
    ordered = sorted(rewrites.items(), key=lambda entry: (entry[1].created, entry[0]))
    rules: list[ModelRewrite] = []
    room = most_parts
    for _, dated in ordered:
        for rule in dated.rules:
            room -= len(rule.models) + len(rule.targets)
            if room < 0:
                return tuple(rules)
            rules.append(rule)
    return tuple(rules)


def _rule(rule: JSONMapping) -> ModelRewrite:
    models = (_mapping(_mapping(match).get("model")).get("value") for match in _list(rule.get("matches")))
    targets = (_target(_mapping(target)) for target in _list(rule.get("targets")))
    return ModelRewrite(tuple(model for model in models if isinstance(model, str)), tuple(target for target in targets if target.model))


def _target(target: JSONMapping) -> ModelTarget:
    model, weight = target.get("modelRewrite"), target.get("weight")
    return ModelTarget(model if isinstance(model, str) else "", min(max(weight, 0), _GREATEST) if isinstance(weight, int) else 0)


def _ports_in(text: str) -> Iterator[int]:
    """The number at the beginning of each part, as llm-d reads it: `8000abc` is 8000."""
    for part in text.split(","):
        match = _LEADING_NUMBER.match(part)
        if match:
            yield int(match[1])


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _is_going(item: JSONMapping) -> bool:
    return bool(_mapping(item.get("metadata")).get("deletionTimestamp"))


def _mapping(value: object) -> JSONMapping:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _texts(value: object) -> tuple[tuple[str, str], ...]:
    """Labels, as far as they are kept."""
    room, kept = MOST_LABEL_CHARACTERS, list[tuple[str, str]]()
    for key, text in _mapping(value).items():
        if isinstance(text, str):
            room -= len(key) + len(text)
            if room < 0:
                break
            kept.append((key, text))
    return tuple(kept)
