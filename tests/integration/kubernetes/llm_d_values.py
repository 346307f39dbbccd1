"""What endpick's chart makes of each value of llm-d's `llm-d-router-gateway` and `llm-d-router-standalone` of August 2026."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from integration.kubernetes.rendering import only


@dataclass(frozen=True, slots=True)
class Taken:
    """A value with the same effect: given so, this is in the object of that kind, at that path (`*` for any element of a list)."""

    value: object
    kind: str
    path: tuple[str, ...]
    expected: object
    beside: Mapping[str, object] | None = None
    """What else has to be given for the value to count."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A value that the chart cannot follow, and says so."""

    value: object
    reason: str


@dataclass(frozen=True, slots=True)
class WithoutEffect:
    """A value that renders as if it were not there."""

    value: object
    why: str


CONTAINER = ("spec", "template", "spec", "containers", "*")
ARGUMENTS = (*CONTAINER, "args", "*")
CONFIGURATION = ("data", "default-plugins.yaml")
AFFINITY = {"nodeAffinity": {}}
SHARE = [{"name": "x", "emptyDir": {}}]
MOUNT = [{"name": "x", "mountPath": "/x"}]
MONITORED = {"router": {"monitoring": {"prometheus": {"enabled": True}}}}
VALUES_OF_VARIABLES = (*CONTAINER, "env", "*", "value")
TRACED = {"router": {"tracing": {"enabled": True}}}
ISTIO = {"provider": {"name": "istio"}}
ROUTED = {"httpRoute": {"create": True}}
PARTS = {"registry": "r", "repository": "p", "tag": "t"}
MINE = {"mine.yaml": "kind: EndpointPickerConfig\n"}

LLM_D: dict[str, Taken | Refused | WithoutEffect] = {
    "router.modelServers.matchLabels": Taken({"app": "x"}, "InferencePool", ("spec", "selector", "matchLabels"), {"app": "x"}),
    "router.modelServers.type": Taken("sglang", "ConfigMap", CONFIGURATION, "defaultEngine: sglang"),
    "router.modelServers.protocol": Taken("grpc", "ConfigMap", CONFIGURATION, "pluginRef: vllmgrpc-parser"),
    "router.modelServers.targetPorts": Taken([{"number": 9}], "InferencePool", ("spec", "targetPorts"), [{"number": 9}]),
    "router.extraServicePorts": Taken([{"name": "x", "port": 1}], "Service", ("spec", "ports", "*"), {"name": "x", "port": 1}),
    "router.clusterDomain": Taken("example", "DestinationRule", ("spec", "host"), "chat-epp.models.svc.example", ISTIO),
    "router.epp.replicas": Taken(2, "Deployment", ("spec", "replicas"), 2),
    "router.epp.image": Taken(
        {"registry": "r", "repository": "p", "tag": "t", "pullPolicy": "Never"}, "Deployment", (*CONTAINER, "image"), "r/p:t"
    ),
    "router.epp.image.pullPolicy": Taken(
        "Never", "Deployment", (*CONTAINER, "imagePullPolicy"), "Never", {"router": {"epp": {"image": PARTS}}}
    ),
    "router.epp.extProcPort": Taken(9100, "InferencePool", ("spec", "endpointPickerRef", "port", "number"), 9100),
    "router.epp.grpcHealthPort": Taken(9103, "Deployment", (*CONTAINER, "readinessProbe", "grpc", "port"), 9103),
    "router.epp.parsers": Taken(["openai-parser"], "ConfigMap", CONFIGURATION, "pluginRef: openai-parser"),
    "router.epp.metricsDataSource.scheme": Taken("https", "ConfigMap", CONFIGURATION, "scheme: https"),
    "router.epp.metricsDataSource.path": Taken("/m", "ConfigMap", CONFIGURATION, "path: /m"),
    "router.epp.metricsDataSource.insecureSkipVerify": Taken(False, "ConfigMap", CONFIGURATION, "insecureSkipVerify: false"),
    "router.epp.flags": Taken({"v": 4}, "Deployment", ARGUMENTS, "--v=4"),
    "router.epp.env": Taken([{"name": "A", "value": "b"}], "Deployment", (*CONTAINER, "env", "*"), {"name": "A", "value": "b"}),
    "router.epp.pluginsConfigFile": Taken("payload-agnostic.yaml", "Deployment", ARGUMENTS, "--config-file=/config/payload-agnostic.yaml"),
    "router.epp.pluginsCustomConfig": Taken(MINE, "ConfigMap", ("data", "mine.yaml"), MINE["mine.yaml"].rstrip()),
    "router.epp.extraContainerPorts": Taken([{"containerPort": 1}], "Deployment", (*CONTAINER, "ports", "*"), {"containerPort": 1}),
    "router.epp.volumes": Taken(SHARE, "Deployment", ("spec", "template", "spec", "volumes", "*"), SHARE[0]),
    "router.epp.volumeMounts": Taken(MOUNT, "Deployment", (*CONTAINER, "volumeMounts", "*"), MOUNT[0]),
    "router.epp.resources": Taken({"requests": {"cpu": "7"}}, "Deployment", (*CONTAINER, "resources", "requests", "cpu"), "7"),
    "router.epp.affinity": Taken(AFFINITY, "Deployment", ("spec", "template", "spec", "affinity"), AFFINITY),
    "router.epp.tolerations": Taken(
        [{"operator": "Exists"}], "Deployment", ("spec", "template", "spec", "tolerations"), [{"operator": "Exists"}]
    ),
    "router.epp.podAnnotations": Taken({"a": "b"}, "Deployment", ("spec", "template", "metadata", "annotations"), {"a": "b"}),
    "router.inferencePool.create": Taken(False, "Deployment", ARGUMENTS, "--endpoint-selector=app=vllm"),
    "router.inferencePool.failureMode": Taken("FailClose", "InferencePool", ("spec", "endpointPickerRef", "failureMode"), "FailClose"),
    "router.inferenceObjectives": Taken([{"name": "o", "priority": 5}], "InferenceObjective", ("spec", "priority"), 5),
    "router.monitoring.interval": Taken("3s", "ServiceMonitor", ("spec", "endpoints", "*", "interval"), "3s", MONITORED),
    "router.monitoring.prometheus.enabled": Taken(True, "ServiceMonitor", ("spec", "endpoints", "*", "path"), "/metrics"),
    "router.monitoring.prometheus.extraLabels": Taken({"l": "m"}, "ServiceMonitor", ("metadata", "labels", "l"), "m", MONITORED),
    "router.monitoring.prometheus.auth.enabled": Taken(True, "Deployment", ARGUMENTS, "--metrics-endpoint-auth=true", MONITORED),
    "router.monitoring.prometheus.auth.secretName": Taken("s", "Secret", ("metadata", "name"), "s", MONITORED),
    "router.monitoring.provider.name": Refused("gmp", "make its PodMonitoring yourself"),
    "router.monitoring.provider.gmp.autopilot": WithoutEffect(True, "of a provider that is refused"),
    "router.tracing.enabled": Taken(True, "Deployment", ARGUMENTS, "--tracing=true"),
    "router.tracing.otelExporterEndpoint": Taken("http://o:4317", "Deployment", VALUES_OF_VARIABLES, "http://o:4317", TRACED),
    "router.tracing.sampling": Taken({"sampler": "always_on"}, "Deployment", VALUES_OF_VARIABLES, "always_on", TRACED),
    "router.proxy.enabled": Taken(
        True, "Service", ("spec", "ports", "*", "name"), "http", {"router": {"proxy": {"image": "registry.example/envoy:1.40"}}}
    ),
    "router.proxy.mode": WithoutEffect("service", "of a proxy that is off"),
    "router.tokenizer.enabled": Refused(True, "run vLLM's render server as a Deployment"),
    "router.tokenizer.modelName": WithoutEffect("m", "of a server that is refused"),
    "router.latencyPredictor.enabled": Refused(True, "run the latency predictor yourself"),
    "router.latencyPredictor.eppEnv": WithoutEffect({"A": "1"}, "of a server that is refused"),
    "provider.name": Refused("gke", "make its policies yourself"),
    "provider.gke.preferredBackends.enabled": WithoutEffect(True, "of a provider that is refused"),
    "provider.istio.destinationRule.host": Taken("h", "DestinationRule", ("spec", "host"), "h", ISTIO),
    "provider.istio.destinationRule.trafficPolicy": Taken(
        {"connectionPool": {"http": {}}}, "DestinationRule", ("spec", "trafficPolicy", "connectionPool"), {"http": {}}, ISTIO
    ),
    "httpRoute.create": Taken(True, "HTTPRoute", ("spec", "parentRefs", "*", "name"), "inference-gateway"),
    "httpRoute.inferenceGatewayName": Taken("g", "HTTPRoute", ("spec", "parentRefs", "*", "name"), "g", ROUTED),
    "httpRoute.inferenceGatewayNamespace": Taken("n", "HTTPRoute", ("spec", "parentRefs", "*", "namespace"), "n", ROUTED),
    "httpRoute.requestTimeout": Taken("9s", "HTTPRoute", ("spec", "rules", "*", "timeouts", "request"), "9s", ROUTED),
    "httpRoute.baseModel": Taken(
        "m", "HTTPRoute", ("spec", "rules", "*", "matches", "*", "headers", "*", "name"), "X-Gateway-Base-Model-Name", ROUTED
    ),
    "httpRoute.headerMatches": Taken(
        {"x-r": "y"}, "HTTPRoute", ("spec", "rules", "*", "matches", "*", "headers", "*", "value"), "y", ROUTED
    ),
}
"""Each value that a user may give there; of what belongs to another server, the one that switches it on and one more."""

FORMER: dict[str, tuple[dict, dict]] = {
    "replicas": ({"inferenceExtension": {"replicas": 2}}, {"router": {"epp": {"replicas": 2}}}),
    "image": (
        {"inferenceExtension": {"image": {"hub": "h", "name": "n", "tag": "t"}}},
        {"router": {"epp": {"image": {"registry": "h", "repository": "n", "tag": "t"}}}},
    ),
    "ports": (
        {"inferenceExtension": {"extProcPort": 9100, "extraContainerPorts": [{"containerPort": 1}], "extraServicePorts": [{"port": 1}]}},
        {"router": {"epp": {"extProcPort": 9100, "extraContainerPorts": [{"containerPort": 1}]}, "extraServicePorts": [{"port": 1}]}},
    ),
    "configuration": (
        {"inferenceExtension": {"pluginsConfigFile": "mine.yaml", "pluginsCustomConfig": MINE, "flags": {"v": 1}, "env": [{"name": "A"}]}},
        {"router": {"epp": {"pluginsConfigFile": "mine.yaml", "pluginsCustomConfig": MINE, "flags": {"v": 1}, "env": [{"name": "A"}]}}},
    ),
    "where it runs": (
        {"inferenceExtension": {"affinity": AFFINITY, "tolerations": [{}], "resources": {"requests": {"cpu": "7"}}}},
        {"router": {"epp": {"affinity": AFFINITY, "tolerations": [{}], "resources": {"requests": {"cpu": "7"}}}}},
    ),
    "monitoring": (
        {"inferenceExtension": {"monitoring": {"prometheus": {"enabled": True}}, "tracing": {"enabled": True}}},
        {"router": {"monitoring": {"prometheus": {"enabled": True}}, "tracing": {"enabled": True}}},
    ),
    "failure": ({"inferenceExtension": {"failureMode": "FailClose"}}, {"router": {"inferencePool": {"failureMode": "FailClose"}}}),
    "pool": (
        {"inferencePool": {"targetPorts": [8000, 8001], "modelServerType": "triton", "modelServers": {"matchLabels": {"b": "c"}}}},
        {"router": {"modelServers": {"targetPorts": [8000, 8001], "type": "triton", "matchLabels": {"b": "c"}}}},
    ),
    "protocol": ({"inferencePool": {"modelServerProtocol": "grpc"}}, {"router": {"modelServers": {"protocol": "grpc"}}}),
    "parser": ({"inferencePool": {"parser": "openai-parser"}}, {"router": {"epp": {"parsers": ["openai-parser"]}}}),
    "metrics": (
        {"inferenceExtension": {"metricsDataSource": {"path": "/m"}}},
        {"router": {"epp": {"metricsDataSource": {"path": "/m"}}}},
    ),
    "older group": (
        {"inferencePool": {"apiVersion": "inference.networking.x-k8s.io/v1alpha2"}},
        {"router": {"inferencePool": {"apiVersion": "inference.networking.x-k8s.io/v1alpha2"}}},
    ),
    "objectives": ({"inferenceObjectives": [{"name": "o"}]}, {"router": {"inferenceObjectives": [{"name": "o"}]}}),
    "route": (
        {"experimentalHttpRoute": {"enabled": True, "inferenceGatewayName": "g", "baseModel": "m"}},
        {"httpRoute": {"create": True, "inferenceGatewayName": "g", "baseModel": "m"}},
    ),
}
"""What was given by the names of the former chart `inferencepool`, and the same by those of today."""


def nested(path: str, value: object) -> dict:
    """The values in which one has this path."""
    for name in reversed(path.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def at(items: list[dict], kind: str, path: tuple[str, ...]) -> list[object]:
    """What is at a path of the one object of a kind."""
    found: list[object] = [only(items, kind)]
    for name in path:
        if name == "*":
            found = [inner for one in found for inner in one or ()]  # type: ignore[attr-defined]
        else:
            found = [one[name] for one in found if isinstance(one, Mapping) and name in one]
    return found
