"""The Helm chart and the kustomizations: values fit the templates, and endpick accepts the result."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping

import pytest

from endpick.cli.llm_d_flags import FLAGS
from endpick.cli.serve import command
from endpick.cli.serve_options import ServeOptions, pool_of
from endpick.config import load_config
from endpick.host.discovery import discover
from endpick.host.planning.planner import make_plan
from endpick_kubernetes.election import lease_name
from endpick_kubernetes.parameters import read_pool
from integration.kubernetes.llm_d_values import ARGUMENTS, FORMER, LLM_D, Refused, WithoutEffect, at, nested
from integration.kubernetes.real_manifests import DEPLOY, HIGHLY_AVAILABLE, KUSTOMIZE, documents
from integration.kubernetes.rendering import CHART, NEEDED, RefusedError, helm_template, kustomized, merged, only

VARIABLES = {
    "$router": "router",
    "$epp": "router.epp",
    "$metrics": "router.epp.metricsDataSource",
    "$policy": "router.epp.networkPolicy",
    "$pool": "router.inferencePool",
    "$monitoring": "router.monitoring",
    "$prometheus": "router.monitoring.prometheus",
    "$route": "httpRoute",
    "$rule": "provider.istio.destinationRule",
}
FORMER_NAMES = {"inferenceExtension", "inferencePool", "inferenceObjectives", "experimentalHttpRoute"}
MINE = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins:\n- {type: random-picker}\n"


def picker(**values: object) -> dict[str, object]:
    return {"router": {"epp": values}}


def servers(**values: object) -> dict[str, object]:
    return {"router": {"modelServers": values}}


CASES = {
    "what has to be said": {},
    "two replicas": picker(replicas=2),
    "two that share": picker(replicas=2, workers=4, state={"url": "valkey://valkey:6379/0", "passwordSecret": "valkey"}),
    "several ports": servers(targetPorts=[{"number": 8000}, {"number": 8001}]),
    "another engine": servers(type="sglang"),
    "triton": servers(type="triton-tensorrt-llm"),
    "another triton": servers(type="triton"),
    "trtllm": servers(type="trtllm-serve"),
    "gRPC": servers(protocol="grpc"),
    "another parser": picker(parsers=["openai-parser", "anthropic-parser"]),
    "metrics elsewhere": picker(metricsDataSource={"scheme": "https", "path": "/m", "insecureSkipVerify": False}),
    "a configuration of one's own": picker(pluginsConfigFile="mine.yaml", pluginsCustomConfig={"mine.yaml": MINE}),
    "whatever the requests are": picker(pluginsConfigFile="payload-agnostic.yaml"),
    "flags": picker(flags={"v": 4, "enable-pprof": False, "refresh-metrics-interval": "100ms"}, extProcPort=9100),
    "the older group": {"router": {"inferencePool": {"apiVersion": "inference.networking.x-k8s.io/v1alpha2"}}},
    "an image in parts": picker(image={"registry": "h", "repository": "n", "tag": "t", "pullPolicy": "Always"}),
    "everything": {
        "router": {
            "epp": {
                "env": [{"name": "A", "value": "b"}],
                "extraContainerPorts": [{"name": "x", "containerPort": 1234}],
                "affinity": {"nodeAffinity": {}},
                "tolerations": [{"operator": "Exists"}],
                "podAnnotations": {"a": "b"},
                "nodeSelector": {"zone": "a"},
                "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
                "imagePullSecrets": [{"name": "registry"}],
                "strategy": {"type": "Recreate"},
                "minReadySeconds": 5,
                "podDisruptionBudget": {"minAvailable": 1},
                "networkPolicy": {"enabled": True, "gateways": [{"podSelector": {"matchLabels": {"app": "envoy"}}}]},
            },
            "extraServicePorts": [{"name": "x", "port": 1234}],
            "monitoring": {
                "prometheus": {
                    "enabled": True,
                    "extraLabels": {"release": "p"},
                    "rules": {"enabled": True, "docs": "https://docs.acme.example"},
                },
                "grafana": {"enabled": True},
            },
            "tracing": {"enabled": True},
            "inferenceObjectives": [{"name": "batch", "priority": -1}],
        },
        "provider": {"name": "istio"},
        "httpRoute": {"create": True},
    },
}


def leaves(values: object, path: str = "") -> Iterator[str]:
    if isinstance(values, Mapping) and values:
        for name, value in values.items():
            yield from leaves(value, f"{path}.{name}" if path else name)
    else:
        yield path


def referred() -> set[str]:
    """Paths of the values in the templates."""
    found = set()
    for file in sorted((CHART / "templates").iterdir()):
        text = file.read_text()
        found |= set(re.findall(r"\$values\.([A-Za-z.]+)", text))
        for variable, path in VARIABLES.items():
            if file.name != "_values.tpl" or variable == "$router":  # which reads the former names, too
                found |= {f"{path}.{name}" for name in re.findall(rf"{re.escape(variable)}\.([A-Za-z.]+)", text)}
    return found - set(VARIABLES.values())


def test_templates_use_exactly_the_values():
    (values,) = documents((CHART / "values.yaml").read_text())
    assert {name for name in values if not values[name]} == FORMER_NAMES
    known, used = {leaf for leaf in leaves(values) if leaf not in FORMER_NAMES}, referred()
    unused = {leaf for leaf in known if not any(within(leaf, path) or within(path, leaf) for path in used)}
    assert unused == set(), "no template uses these values"
    strange = {path for path in used if not any(within(leaf, path) or within(path, leaf) for leaf in known)}
    of_llm_d = {"router.monitoring.provider.name", "router.proxy.mode", "router.proxy.proxyType"}
    assert strange == of_llm_d, "templates use unknown values"


@pytest.mark.parametrize("path", LLM_D)
def test_value_of_llm_d_is_taken_refused_or_idle(path):
    what = LLM_D[path]
    values = merged(NEEDED, nested(path, what.value))
    if isinstance(what, Refused):
        with pytest.raises(RefusedError, match=what.reason):
            helm_template(values)
    elif isinstance(what, WithoutEffect):
        assert helm_template(values) == helm_template(NEEDED), what.why
    else:
        before = values if what.beside is None else merged(what.beside, values)
        found = at(helm_template(before), what.kind, what.path)
        assert any(one == what.expected or (isinstance(one, str) and str(what.expected) in one) for one in found), found


def test_policy_of_a_standalone_release_opens_the_port_of_envoy():
    values = {"router": {"proxy": {"enabled": True, "image": "e:1"}, "epp": {"networkPolicy": {"enabled": True}}}}
    items = helm_template(merged(NEEDED, values))
    assert [each["ports"] for each in only(items, "NetworkPolicy")["spec"]["ingress"]] == [[{"port": "http"}], [{"port": "metrics"}]]
    with pytest.raises(RefusedError, match=r"9002 with router\.proxy\.enabled"):
        helm_template(merged(merged(NEEDED, values), picker(extProcPort=9100)))


def test_metrics_without_auth_need_no_cluster_role():
    for prometheus in ({"enabled": False}, {"enabled": True, "auth": {"enabled": False}}):
        items = helm_template(merged(NEEDED, {"router": {"monitoring": {"prometheus": prometheus}}}))
        assert "--metrics-endpoint-auth=false" in at(items, "Deployment", ARGUMENTS)
        assert not {"Secret", "ClusterRole", "ClusterRoleBinding"} & {item["kind"] for item in items}


def test_an_upgrade_with_another_weight_reloads():
    """Without new Pods: the picker keeps what it has learnt, and the kubelet renews the file within a minute."""
    assert "--watch-config" in at(helm_template(NEEDED), "Deployment", ARGUMENTS)


@pytest.mark.parametrize("case", FORMER)
def test_values_of_the_former_chart_render_the_same(case):
    former, today = FORMER[case]
    assert helm_template(merged(NEEDED, former)) == helm_template(merged(NEEDED, today)) != helm_template(NEEDED)


def test_chart_without_a_pool_selects_pods_by_label():
    more = {"router": {"inferencePool": {"create": False}, "modelServers": {"targetPorts": [{"number": 1}, {"number": 2}]}}}
    items = helm_template(merged(merged(NEEDED, more), picker(replicas=2)))
    assert {item["kind"] for item in items} == {"ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Deployment", "Service"}
    (container,) = only(items, "Deployment")["spec"]["template"]["spec"]["containers"]
    options = ServeOptions(**command.make_context("serve", list(container["args"])).params)
    assert (pool_of(options).selector, pool_of(options).target_ports) == ("app=vllm", (1, 2))
    rules = only(items, "Role")["rules"]
    assert [rule["resources"] for rule in rules] == [["pods"], ["leases"], ["leases"]]
    assert rules[0]["verbs"] == ["list", "watch", "patch"]
    assert rules[-1]["resourceNames"] == [lease_name("models", "", "chat-epp-5d9c7b-x2x4z")]


def within(path: str, other: str) -> bool:
    return f"{path}.".startswith(f"{other}.")


@pytest.mark.parametrize("case", CASES)
def test_endpick_accepts_the_rendered_chart(case):
    values = merged(NEEDED, CASES[case])
    items = helm_template(values)
    deployment, service, pool = only(items, "Deployment"), only(items, "Service"), only(items, "InferencePool")
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["endpick", "serve"]
    options = ServeOptions(**command.make_context("serve", list(container["args"])).params)
    port = values["router"]["epp"].get("extProcPort", 9002)
    assert (options.pool_name, options.pool_namespace, options.grpc_port) == ("chat", "models", port)

    labels = pod["metadata"]["labels"].items()
    leads = {"endpick.dev/leader": "chat-epp"}
    assert service["spec"]["selector"] == {"inferencepool": "chat-epp", **leads}
    assert (leads.items() <= labels) != options.ha_enable_leader_election, "of several Pods, the leader puts it on its own"
    assert options.ha_leader_label == ("endpick.dev/leader=chat-epp" if options.ha_enable_leader_election else "")
    assert not leads.items() & deployment["spec"]["selector"]["matchLabels"].items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels
    reference = pool["spec"].get("endpointPickerRef") or pool["spec"]["extensionRef"]
    assert reference["name"] == service["metadata"]["name"] == "chat-epp"
    assert reference.get("portNumber") or reference["port"]["number"] in [each["port"] for each in service["spec"]["ports"]]
    read = read_pool(pool)
    assert read is not None
    assert read.selector == {"app": "vllm"}
    assert len(read.ports) == (2 if case == "several ports" else 1)

    config_map = next(item for item in items if item["kind"] == "ConfigMap" and item["metadata"]["name"] == "chat-epp")
    mounted = {f"/config/{name}": text for name, text in config_map["data"].items()}
    outcome = make_plan(load_config(text=mounted[options.config_file], name="chart"), discover(), pool=pool_of(options))
    assert outcome.plan is not None, outcome.diagnostics
    assert outcome.plan.discovery == "kubernetes-discovery"

    role = only(items, "Role")
    verbs = {resource: rule["verbs"] for rule in role["rules"] for resource in rule["resources"] if resource != "leases"}
    assert set(verbs) == {"pods", "inferencepools", "inferenceobjectives", "inferencemodelrewrites"}
    assert verbs.pop("pods") == ["list", "watch", *(["patch"] if options.ha_enable_leader_election else [])]
    assert all(each == ["list", "watch"] for each in verbs.values())
    leases = [(rule["verbs"], rule.get("resourceNames")) for rule in role["rules"] if "leases" in rule["resources"]]
    named = [lease_name("models", "chat", "")]
    assert leases == ([(["create"], None), (["list", "watch", "update"], named)] if options.ha_enable_leader_election else [])
    assert options.ha_enable_leader_election == (case == "two replicas")
    assert (options.workers, options.state_url) == ((4, "valkey://valkey:6379/0") if case == "two that share" else (1, ""))


def test_all_options_render():
    items = helm_template(merged(NEEDED, CASES["everything"]))
    assert {"ServiceMonitor", "PrometheusRule", "DestinationRule", "HTTPRoute", "InferenceObjective"} < {item["kind"] for item in items}
    assert only(items, "InferenceObjective")["spec"]["priority"] == -1
    (group,) = only(items, "PrometheusRule")["spec"]["groups"]
    assert all(rule["annotations"]["runbook_url"].startswith("https://docs.acme.example/how-to/runbooks/") for rule in group["rules"])
    (scraped,) = only(items, "ServiceMonitor")["spec"]["endpoints"]
    secret = only(items, "Secret")
    assert scraped["authorization"]["credentials"] == {"name": secret["metadata"]["name"], "key": "token"}
    reader = secret["metadata"]["annotations"]["kubernetes.io/service-account.name"]
    bound = {item["roleRef"]["name"]: item["subjects"][0]["name"] for item in items if item["kind"] == "ClusterRoleBinding"}
    assert bound == {only(items, "ClusterRole")["metadata"]["name"]: reader, "system:auth-delegator": "chat-epp"}
    (dashboard,) = [item["data"]["endpick.json"] for item in items if "grafana_dashboard" in item["metadata"].get("labels", {})]
    assert json.loads(dashboard)["uid"] == "endpick"
    (container,) = only(items, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert {"name": "A", "value": "b"} in container["env"]
    deployment = only(items, "Deployment")["spec"]
    assert (deployment["strategy"], deployment["minReadySeconds"]) == ({"type": "Recreate"}, 5)
    pod = deployment["template"]["spec"]
    assert (pod["nodeSelector"], pod["imagePullSecrets"]) == ({"zone": "a"}, [{"name": "registry"}])
    assert pod["topologySpreadConstraints"][0]["maxSkew"] == 1
    budget, policy = only(items, "PodDisruptionBudget")["spec"], only(items, "NetworkPolicy")["spec"]
    assert budget == {"minAvailable": 1, "selector": deployment["selector"]}
    assert policy["podSelector"] == deployment["selector"]
    assert [each["ports"] for each in policy["ingress"]] == [[{"port": "grpc"}], [{"port": "metrics"}]]
    assert policy["ingress"][0]["from"] == [{"podSelector": {"matchLabels": {"app": "envoy"}}}]
    assert "from" not in policy["ingress"][1], "everyone"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (picker(image=""), "name the image"),
        (picker(pluginsConfigFile="none.yaml"), "no none.yaml in pluginsCustomConfig"),
        (servers(type="other"), "none that endpick knows"),
        (servers(matchLabels=None), "which Pods are model servers"),
        ({"inferenceExtension": {"sidecar": {"enabled": True}}}, "name an image of Envoy"),
        ({"router": {"proxy": {"enabled": True, "image": "e:1", "mode": "service"}}}, "sidecar, not service"),
        ({"router": {"proxy": {"enabled": True, "image": "e:1", "proxyType": "agentgateway"}}}, "envoy, not agentgateway"),
        ({"inferenceExtension": {"latencyPredictor": {"enabled": True}}}, "run the latency predictor yourself"),
    ],
)
def test_unsupported_value_is_refused_with_a_reason(values, reason):
    with pytest.raises(RefusedError, match=reason):
        helm_template(merged(NEEDED, values))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (picker(replica=2), "/router/epp': additional properties 'replica' not allowed"),
        (picker(replicas="2"), "/router/epp/replicas': got string, want integer"),
        (picker(flags={"drain-timeout": 30}), "/router/epp/flags/drain-timeout'"),
        (picker(flags={"drain-timeout": "30 s"}), "/router/epp/flags/drain-timeout'"),
        (picker(podDisruptionBudget={"minAvailable": "half"}), "does not match pattern"),
        ({"router": {"monitoring": {"interval": "fast"}}}, "/router/monitoring/interval'"),
        ({"httpRoute": {"requestTimeout": "5 minutes"}}, "/httpRoute/requestTimeout'"),
        ({"inferenceExtension": {"replica": 2}}, "additional properties 'replica' not allowed"),
        ({"routers": {}}, "additional properties 'routers' not allowed"),
    ],
)
def test_schema_refuses_typos_and_wrong_types(values, reason):
    with pytest.raises(RefusedError, match=re.escape(reason)):
        helm_template(merged(NEEDED, values))


def test_schema_takes_durations_of_each_kind():
    flags = {"drain-timeout": 0, "finish-timeout": "1m30s", "refresh-metrics-interval": "1.5ms"}
    assert helm_template(merged(NEEDED, merged(picker(flags=flags), {"global": {"imageRegistry": "r"}})))


@pytest.mark.parametrize(("folder", "replicas"), [(KUSTOMIZE, 1), (HIGHLY_AVAILABLE, 2)], ids=["one replica", "two replicas"])
def test_endpick_accepts_the_kustomization(folder, replicas):
    items = kustomized(folder)
    deployment = only(items, "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    options = ServeOptions(**command.make_context("serve", list(container["args"])).params)
    assert container["command"] == ["endpick", "serve"]
    assert deployment["spec"]["replicas"] == replicas
    assert options.ha_enable_leader_election == (replicas > 1)
    assert options.pool_name == only(items, "InferencePool")["metadata"]["name"]
    roles = [item["metadata"]["name"] for item in items if item["kind"] == "Role"]
    assert len(roles) == replicas
    key, value = "endpick.dev/leader", "endpick"
    assert only(items, "Service")["spec"]["selector"][key] == value
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert (labels.get(key, ""), options.ha_leader_label) == ((value, "") if replicas == 1 else ("", f"{key}={value}"))


def test_image_takes_the_arguments_of_llm_d():
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    (entry,) = [line for line in lines if line.startswith("ENTRYPOINT")]
    assert shlex.split(re.sub(r"[\[\],]", " ", entry))[1:] == ["endpick", "serve"]
    (path,) = [line for line in lines if line.startswith("ENV PATH=")]
    assert path.startswith("ENV PATH=/opt/endpick/bin:")
    assert {"pool-name", "config-file", "ha-enable-leader-election"} <= {flag.name for flag in FLAGS}
