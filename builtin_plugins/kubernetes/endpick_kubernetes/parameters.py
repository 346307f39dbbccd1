"""The parameters of `kubernetes-discovery`."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from endpick.api import Duration, Parameters
from endpick_kubernetes.objects import OLD_POOL_GROUP, POOL_GROUP

POOL_VERSIONS = MappingProxyType({POOL_GROUP: "v1", OLD_POOL_GROUP: "v1alpha2"})

Port = Annotated[int, Field(ge=1, le=65535)]


class KubernetesDiscoveryParameters(Parameters):
    """The pool and its API server. Either `poolName` or `endpointSelector` is required."""

    pool_name: Annotated[str, Field(alias="poolName", description="Name of the InferencePool.", examples=["vllm-pool"])] = ""
    pool_namespace: Annotated[
        str,
        Field(
            alias="poolNamespace",
            description="Namespace of the pool and its Pods. Default: $NAMESPACE, then the namespace of the service account or "
            "kubeconfig, then `default`.",
        ),
    ] = ""
    pool_group: Annotated[str, Field(alias="poolGroup", description="API group of the InferencePool.", examples=[POOL_GROUP])] = POOL_GROUP
    endpoint_selector: Annotated[
        str,
        Field(
            alias="endpointSelector",
            description="Label selector of the Pods, in kubectl syntax. Use it if there is no InferencePool.",
            examples=["app=vllm,env in (a, b)"],
        ),
    ] = ""
    endpoint_target_ports: Annotated[
        tuple[Port, ...],
        Field(alias="endpointTargetPorts", max_length=8, description="Ports of each Pod. Required with `endpointSelector`."),
    ] = ()
    kubeconfig: Annotated[
        str, Field(description="Path of a kubeconfig file. Default: $KUBECONFIG, then the Pod's service account, then ~/.kube/config.")
    ] = ""
    watch_timeout: Annotated[
        Duration,
        Field(
            alias="watchTimeout",
            ge=1,
            le=600,
            description="Longest duration of one watch. Limits how long a broken connection goes unnoticed.",
        ),
    ] = 20.0
    longest_pause: Annotated[
        Duration,
        Field(
            alias="longestPause",
            gt=0,
            le=60,
            description="Longest back-off while the API server answers with errors. It is 0.2 s for the first errors and while the "
            "server does not answer.",
        ),
    ] = 5.0
    leader_election: Annotated[
        bool,
        Field(alias="leaderElection", description="Elect one replica by a Lease. The others stand by and report NOT_SERVING."),
    ] = False
    populate_followers: Annotated[
        bool,
        Field(
            alias="populateFollowers",
            description="Follow the pool while standing by, so that the replica can take over at once. "
            "llm-d's feature gate `haPopulateNonLeaderDatastore`.",
        ),
    ] = True
    lease_duration: Annotated[
        Duration,
        Field(alias="leaseDuration", ge=1, le=3600, description="Age at which another replica may take a lease that is not renewed."),
    ] = 15.0
    renew_deadline: Annotated[
        Duration,
        Field(
            alias="renewDeadline",
            gt=0,
            le=3600,
            description="Time without a successful renewal after which the leader stands by. Must be shorter than `leaseDuration`.",
        ),
    ] = 10.0
    retry_period: Annotated[
        Duration,
        Field(
            alias="retryPeriod",
            gt=0,
            le=3600,
            description="Interval between attempts to take or renew the lease. Must be shorter than `renewDeadline`.",
        ),
    ] = 2.0

    def mistake(self) -> str:
        """The first inconsistency; empty if there is none."""
        if bool(self.pool_name) == bool(self.endpoint_selector):
            return "give either `poolName` (--pool-name) or `endpointSelector` (--endpoint-selector)"
        if self.endpoint_selector and not self.endpoint_target_ports:
            return "`endpointSelector` needs `endpointTargetPorts` (--endpoint-target-ports): 1 to 8 ports"
        if self.pool_name and self.pool_group not in POOL_VERSIONS:
            return f"`poolGroup` is {' or '.join(POOL_VERSIONS)}, not '{self.pool_group}'"
        if not self.retry_period < self.renew_deadline < self.lease_duration:
            return "`retryPeriod` must be shorter than `renewDeadline`, and that than `leaseDuration`, or two replicas could lead"
        return ""
