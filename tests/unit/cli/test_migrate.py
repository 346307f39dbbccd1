"""`endpick migrate` compared with golden files; ENDPICK_UPDATE_GOLDEN=1 rewrites them."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from endpick.cli.main import main
from endpick.config import load_config
from endpick_migrate.config import rewrite

GOLDEN = Path(__file__).parent / "golden"
SAMPLES = sorted((Path(__file__).parents[2] / "fixtures/configs").glob("*.yaml"))
"""Configurations of August 2026."""

DEPLOYMENT = """\
apiVersion: v1
kind: ServiceAccount
---
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
        - name: envoy
          args: [--config-path, /etc/envoy.yaml]
        - name: epp
          command: [/epp]
          args: [--pool-name, chat, --pool-namespace=prod, --config-file, /config/default-plugins.yaml, --zap-encoder=json, -v, "4",
                 --tracing=false, --enable-pprof, --grpc-max-recv-msg-size=10MiB, --secure-serving=false]
          env:
            - {name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
            - {name: OTEL_TRACES_EXPORTER, value: otlp}
"""
VALUES = """\
inferenceExtension:
  replicas: 2
  flags: {v: 1, metrics-endpoint-auth: false}
  pluginsConfigFile: mine.yaml
  pluginsCustomConfig: {mine.yaml: "{apiVersion: llm-d.ai/v1, kind: EndpointPickerConfig}"}
  tracing: {enabled: true}
  latencyPredictor: {enabled: true}
  env: [{name: POD_NAME, value: x}]
inferencePool: {targetPorts: [8000]}
"""
VALUES_OF_AUGUST = """\
router:
  epp:
    replicas: 2
    grpcHealthPort: 9009
    flags: {v: 1, secure-serving: false}
    pluginsConfigFile: payload-agnostic.yaml
    env: [{name: OTEL_SERVICE_NAME, value: x}]
  tracing: {enabled: false}
  monitoring: {prometheus: {auth: {enabled: false}}}
  modelServers: {type: sglang, targetPorts: [{number: 8000}]}
  tokenizer: {enabled: true}
"""
VALUES_WITHOUT_POOL = """\
router:
  epp: {pluginsCustomConfig: {other.yaml: "{apiVersion: llm-d.ai/v1, kind: EndpointPickerConfig}"}, pluginsConfigFile: mine.yaml}
  inferencePool: {create: false}
  modelServers: {matchLabels: {app: vllm, tier: gold}, targetPorts: [{number: 8000}, {number: 8001}]}
"""
OF_A_LIBRARY_CHART = "epp: {replicas: 1}\ninferencePool: {create: true}\n"
SERVICE_OF_KSERVE = """\
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {name: qwen, namespace: ml}
spec:
  model: {uri: hf://qwen}
  router:
    route: {}
    scheduler:
      replicas: 2
      config: {inline: {apiVersion: llm-d.ai/v1, kind: EndpointPickerConfig, plugins: [{type: queue-scorer}]}}
      template:
        containers:
          - name: main
            args: [--v=4, --grpc-port=9002]
            env: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hf, key: token}}}]
            resources: {limits: {cpu: 1}}
"""
UNDER_A_PARENT = """\
llm-d:
  router-chart:
    router:
      epp:
        flags: ["--v=2", {name: secure-serving, value: false}, {metrics-port: 9091}, --health-checking]
        env: {POD_NAME: x, FOO: y}
        somethingNew: {a: 1}
      proxy: {proxyType: envoy}
global: {x: 1}
"""
WITH_A_CONFIG_MAP = """\
kind: List
items:
  - kind: ConfigMap
    metadata: {name: epp}
    data:
      custom.yaml: "{apiVersion: llm-d.ai/v1, kind: EndpointPickerConfig}"
      other.txt: hello
  - kind: Pod
    spec:
      containers:
        - command: [/epp]
          args: [--pool-name=$(POOL), --pool-namespace, $(NAMESPACE), --config-file=/config/custom.yaml]
          env: [{name: POOL, value: chat}, {name: NAMESPACE, valueFrom: {}}]
          envFrom: [{configMapRef: {name: more}}]
  - kind: Service
"""
CASES = {
    "migrate-kserve": SERVICE_OF_KSERVE,
    "migrate-values-under-a-parent": UNDER_A_PARENT,
    "migrate-list-with-a-config-map": WITH_A_CONFIG_MAP,
    "migrate-values-of-august": VALUES_OF_AUGUST,
    "migrate-values-without-pool": VALUES_WITHOUT_POOL,
    "migrate-values-of-a-library-chart": OF_A_LIBRARY_CHART,
    "migrate-deployment": DEPLOYMENT,
    "migrate-values": VALUES,
    "migrate-plain-values": "inferenceExtension: {}\n",
    "migrate-arguments": "[--endpoint-selector, app=vllm, --endpoint-target-ports, '8000,8001', --health-checking]\n",
}


@pytest.mark.parametrize("case", CASES)
def test_output_matches_the_golden_file(case: str) -> None:
    result = CliRunner().invoke(main, ["migrate", "-"], input=CASES[case])
    golden = GOLDEN / f"{case}.txt"
    if os.environ.get("ENDPICK_UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(result.stdout, encoding="utf-8")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == golden.read_text(encoding="utf-8")


def test_arguments_may_be_given_directly() -> None:
    result = CliRunner().invoke(main, ["migrate", "--", "--pool-name=chat", "-v", "4"])

    assert (result.exit_code, result.stdout.split("\n#")[0]) == (0, "endpick serve \\\n  --pool-name=chat \\\n  --v=4")


def test_unknown_and_removed_flags_end_with_3() -> None:
    result = CliRunner().invoke(main, ["migrate", "--", "--lora-info-metric", "x", "--pool-nam=a", "--grpc-port=1"])

    assert result.exit_code == 3
    assert result.stdout == "endpick serve \\\n  --grpc-port=1\n"
    assert "error: llm-d has removed --lora-info-metric: name metrics with the parameter `engineConfigs`" in result.stderr
    assert "error: '--pool-nam=a' is not a flag of llm-d; did you mean '--pool-name'?" in result.stderr


@pytest.mark.parametrize("text", ["kind: ConfigMap\n", "{", "5\n", "q: !!bool zz", "spec: {template: {spec: {containers: [1, [], null]}}}"])
def test_a_file_without_a_start_is_wrong_usage(text: str) -> None:
    result = CliRunner().invoke(main, ["migrate", "-"], input=text)

    assert (result.exit_code, "Traceback" in result.output) == (2, False)


@pytest.mark.parametrize("case", CASES)
def test_printed_commands_are_valid(case: str) -> None:
    from endpick.cli.serve import command  # slow to import

    output = CliRunner().invoke(main, ["migrate", "-"], input=CASES[case]).stdout
    printed = "\n".join(line for line in output.splitlines() if not line.startswith("#"))
    parameters = command.make_context("serve", shlex.split(printed.replace("\\\n", " "))[2:]).params

    assert parameters["pool_name"] or parameters["endpoint_selector"]


WRONG = {
    "router: {epp: {replicas: many}}": "router.epp.replicas is not a whole number: 'many'",
    "router: {epp: {replicas: [2]}}": "router.epp.replicas is not a whole number: '[2]'",
    "a: {router: {epp: {flags: --v=2}}}": "a.router.epp.flags is not a list: '--v=2'",
    "router: {epp: {flags: [[1]]}}": "router.epp.flags[0] is a list, not a flag",
    "router: {epp: {env: [x]}}": "router.epp.env[0] has no name",
    "router: {epp: {pluginsCustomConfig: [x]}}": "router.epp.pluginsCustomConfig is not a mapping: \"['x']\"",
    "spec: {containers: [{command: [sh, -c, /epp --pool-name=a]}]}": (
        "spec.containers[0].command is a shell script; give its arguments: endpick migrate -- --pool-name=..."
    ),
    "spec: {containers: [{args: [--pool-name, a], env: 5}]}": "spec.containers[0].env is not a list: '5'",
    "- {kind: EndpointPickerConfig}\n- --pool-name=a": None,
    "kind: EndpointPickerConfig\n---\nkind: Service": "an EndpointPickerConfig among other documents; put it into a file of its own",
}


@pytest.mark.parametrize("text", WRONG)
def test_an_unexpected_shape_is_refused_with_its_place(text: str) -> None:
    result = CliRunner().invoke(main, ["migrate", "-"], input=text)

    assert result.exit_code == 3
    if WRONG[text] is not None:
        assert result.stderr == f"error: {WRONG[text]}\n"


@st.composite
def values(draw: st.DrawFn) -> tuple[dict[str, object], set[str]]:
    """Values of a chart with unknown parts, and the names of these parts."""
    names = draw(st.lists(st.from_regex(r"x[a-z]{3,8}", fullmatch=True), min_size=1, max_size=5, unique=True))
    places = draw(st.lists(st.sampled_from(["top", "router", "epp", "inferencePool"]), min_size=len(names), max_size=len(names)))
    contents = st.one_of(st.integers(1), st.text("ab", min_size=1), st.lists(st.integers(), min_size=1), st.just({"deep": {"er": 1}}))
    document: dict[str, dict[str, object]] = {"top": {}, "router": {}, "epp": {"flags": {"v": 2}}, "inferencePool": {"create": True}}
    for name, place in zip(names, places, strict=True):
        document[place][name] = draw(contents)
    router = document["router"] | {"epp": document["epp"], "inferencePool": document["inferencePool"]}
    return {"router": router} | document["top"], set(names)


@given(values())
def test_every_part_that_is_not_read_is_listed(case: tuple[dict[str, object], set[str]]) -> None:
    document, names = case
    result = CliRunner().invoke(main, ["migrate", "-"], input=json.dumps(document))

    listed = [line.split(" is not carried over: ") for line in result.stdout.splitlines() if "is not carried over" in line]
    assert result.exit_code == 0
    assert {place.rpartition(".")[2].removeprefix("# ") for place, _ in listed} == names
    assert all(reason for _, reason in listed)


CONFIGURATION = """\
# head
apiVersion: "llm-d.ai/v1alpha1" # version
kind: EndpointPickerConfig
plugins:
  - type: file-discovery # finds
    parameters: {path: 'e.yaml'}
  - type: redis-state-store
  - type: openai-parser
# about the data layer
dataLayer:
  injectDefaults: false
  discovery:
    pluginRef: file-discovery # here
  crossReplicaSyncerPluginRef: redis-state-store # who
  crossReplicaSyncInterval: 200ms
# parser
parser: {pluginRef: openai-parser}
"""
REWRITTEN = """\
# head
apiVersion: "llm-d.ai/v1" # version
kind: EndpointPickerConfig
plugins:
  - type: file-discovery # finds
    parameters: {path: 'e.yaml'}
  - type: redis-state-store
  - type: openai-parser
# about the data layer
dataLayer:
  injectDefaults: false
  discovery:
    endpoints:
      pluginRef: file-discovery # here
  crossReplica:
    syncerPluginRef: redis-state-store # who
    syncInterval: 200ms
# parser
requestHandler:
  parsers:
    - {pluginRef: openai-parser}
"""


def words(text: str) -> list[list[str]]:
    """Lines without the spaces that align comments."""
    return [[line[: len(line) - len(line.lstrip())], *line.split()] for line in text.splitlines()]


def test_a_configuration_is_rewritten_in_place(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIGURATION)

    shown = CliRunner().invoke(main, ["migrate", "--diff", str(file)])
    assert (shown.exit_code, file.read_text()) == (0, CONFIGURATION)
    assert "-parser: {pluginRef: openai-parser}\n+requestHandler:\n+  parsers:\n" in shown.stdout

    done = CliRunner().invoke(main, ["migrate", str(file)])
    assert (done.exit_code, done.stdout) == (0, "")
    assert words(file.read_text()) == words(REWRITTEN)
    assert f"{file}: dataLayer.discovery.pluginRef becomes dataLayer.discovery.endpoints.pluginRef\n" in done.stderr

    again = CliRunner().invoke(main, ["migrate", str(file)])
    assert again.stderr == f"{file}: nothing to change\n"


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_means_the_same_as_v1(path: Path) -> None:
    before = load_config(path)
    after = load_config(text=rewrite(path.read_text())[0])

    assert before.config is not None
    assert after.config is not None
    assert (after.config.api_version, after.diagnostics) == ("llm-d.ai/v1", ())
    fixed = {"api_version", "parser", "saturation_detector", "request_handler", "flow_control"}
    assert after.config.model_dump(exclude=fixed) == before.config.model_dump(exclude=fixed)
    for field in ("parser_refs", "saturation_detector_ref"):
        assert repr(getattr(after.config, field)) == repr(getattr(before.config, field))


def test_a_configuration_with_mistakes_is_not_rewritten(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"{CONFIGURATION}plugin: []\n")

    result = CliRunner().invoke(main, ["migrate", str(file)])

    assert (result.exit_code, "error[E0201]" in result.stderr, file.read_text().endswith("plugin: []\n")) == (3, True, True)


def test_an_embedded_configuration_is_checked() -> None:
    text = "router: {epp: {pluginsCustomConfig: {a.yaml: '{apiVersion: llm-d.ai/v1, kind: EndpointPickerConfig, plugins: [{type: b}]}'}}}"
    result = CliRunner().invoke(main, ["migrate", "-"], input=text)

    assert result.exit_code == 3
    assert "error[E0301]: no installed plugin offers the type 'b'\n  --> router.epp.pluginsCustomConfig.a.yaml:1:" in result.stderr
