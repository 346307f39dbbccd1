"""The parameters of `kubernetes-discovery`, and what of them must go together."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from endpick.api import Duration, Parameters
from endpick_builtin.kubernetes.client import MOST_PAGE_BYTES
from endpick_builtin.kubernetes.following import MOST_OBJECTS
from endpick_builtin.kubernetes.objects import MOST_RULE_PARTS, OLD_POOL_GROUP, POOL_GROUP
from endpick_builtin.kubernetes.pages import MOST_ITEM_BYTES

POOL_VERSIONS = MappingProxyType({POOL_GROUP: "v1", OLD_POOL_GROUP: "v1alpha2"})
"""Versions of InferencePool, by group."""

Port = Annotated[int, Field(ge=1, le=65535)]


class KubernetesDiscoveryParameters(Parameters):
    """Which pool, and how the API server is asked. Either `poolName` or `endpointSelector` is needed."""

    pool_name: Annotated[str, Field(alias="poolName", description="Name of the InferencePool.", examples=["vllm-pool"])] = ""
    pool_namespace: Annotated[
        str,
        Field(
            alias="poolNamespace",
            description="Namespace of the pool and its Pods; empty for $NAMESPACE, else that of the service account or the kubeconfig, "
            "else `default`.",
        ),
    ] = ""
    pool_group: Annotated[str, Field(alias="poolGroup", description="API group of the InferencePool.", examples=[POOL_GROUP])] = POOL_GROUP
    endpoint_selector: Annotated[
        str,
        Field(
            alias="endpointSelector",
            description="Label selector of the Pods, where there is no InferencePool; as kubectl takes it.",
            examples=["app=vllm,env in (a, b)"],
        ),
    ] = ""
    endpoint_target_ports: Annotated[
        tuple[Port, ...],
        Field(alias="endpointTargetPorts", max_length=8, description="Ports of each Pod; needed with `endpointSelector`."),
    ] = ()
    kubeconfig: Annotated[
        str, Field(description="File that says where the API server is; empty for $KUBECONFIG, else the service account of the Pod.")
    ] = ""
    watch_timeout: Annotated[
        Duration,
        Field(
            alias="watchTimeout",
            ge=1,
            le=600,
            description="After which a watch is begun anew: how long an API server that has fallen silent is believed.",
        ),
    ] = 20.0
    ping_interval: Annotated[
        Duration,
        Field(
            alias="pingInterval",
            ge=0.05,
            le=600,
            description="After which an API server that says nothing on a watch is asked on the same connection, by a PING of HTTP/2, "
            "whether it is there; after as long again without an answer, or where the server takes nothing for so long, the watch goes on "
            "over another connection. Without effect where the server, or a proxy before it, speaks HTTP/1.1 only: there `watchTimeout` "
            "bounds silence.",
        ),
    ] = 1.0
    longest_pause: Annotated[
        Duration,
        Field(
            alias="longestPause",
            gt=0,
            le=60,
            description="Longest time between two attempts while the API server answers with errors; 0.5 s while it does not answer.",
        ),
    ] = 5.0
    leader_election: Annotated[
        bool,
        Field(alias="leaderElection", description="Agree with the other replicas by a Lease that one of them serves; the others stand by."),
    ] = False
    populate_followers: Annotated[
        bool,
        Field(
            alias="populateFollowers",
            description="Whether replicas that stand by follow the pool, so that they can route what comes to them and lead at once; "
            "llm-d's feature gate `haPopulateNonLeaderDatastore`.",
        ),
    ] = True
    lease_duration: Annotated[
        Duration,
        Field(alias="leaseDuration", ge=1, le=3600, description="After which a lease that its holder has not renewed may be taken."),
    ] = 15.0
    renew_deadline: Annotated[
        Duration,
        Field(
            alias="renewDeadline",
            gt=0,
            le=3600,
            description="For which renewing may fail before the leader stands by; shorter than `leaseDuration`.",
        ),
    ] = 10.0
    retry_period: Annotated[
        Duration,
        Field(
            alias="retryPeriod", gt=0, le=3600, description="Between two attempts to take or renew the lease; shorter than `renewDeadline`."
        ),
    ] = 2.0

    max_objects: Annotated[
        int,
        Field(
            alias="maxObjects", ge=1, description="Objects of a collection that are kept, and endpoints of all Pods; others are left out."
        ),
    ] = MOST_OBJECTS
    max_rule_parts: Annotated[
        int,
        Field(
            alias="maxRuleParts",
            ge=1,
            description="Models and targets in the rules of all InferenceModelRewrites together; other rules are left out.",
        ),
    ] = MOST_RULE_PARTS
    max_list_bytes: Annotated[
        int,
        Field(
            alias="maxListBytes",
            ge=1024 * 1024,
            description="Longest answer of the API server, in bytes: of a list a page of 500 objects. A longer one is refused.",
        ),
    ] = MOST_PAGE_BYTES
    max_object_bytes: Annotated[
        int,
        Field(
            alias="maxObjectBytes",
            ge=64 * 1024,
            le=16 * 1024 * 1024,
            description="Longest object in a list or an event of a watch, in bytes. Everything else waits for a moment while one is read: "
            "the longer it may be, the longer.",
        ),
    ] = MOST_ITEM_BYTES

    def mistake(self) -> str:
        """What does not go together; empty where all does."""
        if bool(self.pool_name) == bool(self.endpoint_selector):
            return "give either `poolName` (--pool-name) or `endpointSelector` (--endpoint-selector)"
        if self.endpoint_selector and not self.endpoint_target_ports:
            return "`endpointSelector` needs `endpointTargetPorts` (--endpoint-target-ports): 1 to 8 ports"
        if self.pool_name and self.pool_group not in POOL_VERSIONS:
            return f"`poolGroup` is {' or '.join(POOL_VERSIONS)}, not '{self.pool_group}'"
        if not self.retry_period < self.renew_deadline < self.lease_duration:
            return "`retryPeriod` must be shorter than `renewDeadline`, and that than `leaseDuration`, or two replicas could lead"
        return ""
