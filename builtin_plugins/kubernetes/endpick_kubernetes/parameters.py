"""Reads Pods, InferencePools, InferenceObjectives and InferenceModelRewrites; the parameters of `kubernetes-discovery`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

from pydantic import Field

from endpick.api import Duration, Endpoint
from endpick.api.discovery import ModelRewrite, ModelTarget
from endpick_builtin.camel_parameters import CamelParameters

Object: TypeAlias = Mapping[str, Any]

POOL_GROUP = "inference.networking.k8s.io"
OLD_POOL_GROUP = "inference.networking.x-k8s.io"
ACTIVE_PORTS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")  # the first one present counts
_LEADING_NUMBER = re.compile(r"\s*\+?(\d{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Pool:
    """An InferencePool; each Pod with all its labels is an endpoint per port."""

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
        """Whether the object's `poolRef` names this pool, by default in the current group."""
        reference = item["spec"]["poolRef"]
        return bool(reference["name"] == self.name and (reference.get("group") or POOL_GROUP) == self.group)


@dataclass(frozen=True, slots=True)
class DatedRewrites:
    """Rules of one InferenceModelRewrite; older objects take precedence."""

    created: str
    rules: tuple[ModelRewrite, ...]


def read_pool(item: Object) -> Pool | None:
    """Read an InferencePool; returns None if it is being deleted or selects every Pod."""
    if _is_terminating(item):
        return None
    spec = item["spec"]
    labels = spec["selector"].get("matchLabels", spec["selector"])
    ports = [port["number"] for port in spec.get("targetPorts", ())] or [spec["targetPortNumber"]]
    return Pool(labels, tuple(dict.fromkeys(ports))) if labels else None


def read_pod(item: Object) -> Pod | None:
    """Read a Pod; returns None unless it is ready, has an address and is not being deleted."""
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
    """Yield an endpoint per Pod and port, `namespace/pod-rank-N` with the port's index, as in llm-d."""
    for pod in pods:
        for rank, port in enumerate(ports):
            if pod.active_ports is None or port in pod.active_ports:
                yield Endpoint(f"{namespace}/{pod.name}-rank-{rank}", pod.ip, port, pod.labels)


def read_objective(item: Object, pool: PoolName) -> int | None:
    """Return the priority of an InferenceObjective, or None if it does not apply."""
    if _is_terminating(item) or not pool.is_referenced_by(item):
        return None
    return int(item["spec"].get("priority") or 0)


def read_rewrites(item: Object, pool: PoolName) -> DatedRewrites | None:
    """Return the rules of an InferenceModelRewrite, or None if they do not apply."""
    if _is_terminating(item) or not pool.is_referenced_by(item):
        return None
    rules = tuple(_rule(rule) for rule in item["spec"].get("rules") or ())
    return DatedRewrites(item["metadata"].get("creationTimestamp", ""), rules)


def rules_in_order(rewrites: Mapping[str, DatedRewrites]) -> Iterator[ModelRewrite]:
    """Yield all rules, oldest object first, then by name."""
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


POOL_VERSIONS = MappingProxyType({POOL_GROUP: "v1", OLD_POOL_GROUP: "v1alpha2"})

Port = Annotated[int, Field(ge=1, le=65535)]


class KubernetesDiscoveryParameters(CamelParameters):
    """The pool and its API server. Either `poolName` or `endpointSelector` is required."""

    pool_name: Annotated[str, Field(description="Name of the InferencePool.", examples=["vllm-pool"])] = ""
    pool_namespace: Annotated[
        str,
        Field(
            description="Namespace of the pool and its Pods. Default: $NAMESPACE, then the namespace of the service account or "
            "kubeconfig, then `default`."
        ),
    ] = ""
    pool_group: Annotated[str, Field(description="API group of the InferencePool.", examples=[POOL_GROUP])] = POOL_GROUP
    endpoint_selector: Annotated[
        str,
        Field(
            description="Label selector of the Pods, in kubectl syntax. Use it if there is no InferencePool.",
            examples=["app=vllm,env in (a, b)"],
        ),
    ] = ""
    endpoint_target_ports: Annotated[
        tuple[Port, ...], Field(max_length=8, description="Ports of each Pod. Required with `endpointSelector`.")
    ] = ()
    kubeconfig: Annotated[
        str, Field(description="Path of a kubeconfig file. Default: $KUBECONFIG, then the Pod's service account, then ~/.kube/config.")
    ] = ""
    watch_timeout: Annotated[
        Duration, Field(ge=1, le=600, description="Longest duration of one watch. Limits how long a broken connection goes unnoticed.")
    ] = 20.0
    longest_pause: Annotated[
        Duration,
        Field(
            gt=0,
            le=60,
            description="Longest back-off while the API server answers with errors. It is 0.2 s for the first errors and while the "
            "server does not answer.",
        ),
    ] = 5.0
    leader_election: Annotated[
        bool, Field(description="Elect one replica by a Lease. The others stand by and, without `leaderLabel`, report NOT_SERVING.")
    ] = False
    leader_label: Annotated[
        str,
        Field(
            pattern=r"^([^=]+=[^=]+)?$",
            description="Label that the leader puts on its Pod ($POD_NAME) and takes off others, as `key=value`. A Service can then select "
            "the leader, so the others report SERVING.",
            examples=["endpick.dev/leader=my-epp"],
        ),
    ] = ""
    populate_followers: Annotated[
        bool,
        Field(
            description="Follow the pool while standing by, so that the replica can take over at once. "
            "llm-d's feature gate `haPopulateNonLeaderDatastore`."
        ),
    ] = True
    lease_duration: Annotated[
        Duration, Field(ge=1, le=3600, description="Age at which another replica may take a lease that is not renewed.")
    ] = 15.0
    renew_deadline: Annotated[
        Duration,
        Field(
            gt=0,
            le=3600,
            description="Time without a successful renewal after which the leader stands by. Must be shorter than `leaseDuration`.",
        ),
    ] = 10.0
    retry_period: Annotated[
        Duration,
        Field(gt=0, le=3600, description="Interval between attempts to take or renew the lease. Must be shorter than `renewDeadline`."),
    ] = 2.0

    def mistake(self) -> str:
        """Return the first inconsistency, or an empty text if there is none."""
        if bool(self.pool_name) == bool(self.endpoint_selector):
            return "give either `poolName` (--pool-name) or `endpointSelector` (--endpoint-selector)"
        if self.endpoint_selector and not self.endpoint_target_ports:
            return "`endpointSelector` needs `endpointTargetPorts` (--endpoint-target-ports): 1 to 8 ports"
        if self.pool_name and self.pool_group not in POOL_VERSIONS:
            return f"`poolGroup` is {' or '.join(POOL_VERSIONS)}, not '{self.pool_group}'"
        if self.leader_label and not self.leader_election:
            return "`leaderLabel` (--ha-leader-label) needs `leaderElection` (--ha-enable-leader-election)"
        if not self.retry_period < self.renew_deadline < self.lease_duration:
            return "`retryPeriod` must be shorter than `renewDeadline`, and that than `leaseDuration`, or two replicas could lead"
        return ""
