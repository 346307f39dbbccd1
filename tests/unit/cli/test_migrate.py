"""`endpick migrate` compared with golden files; ENDPICK_UPDATE_GOLDEN=1 rewrites them."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from endpick.cli.main import main

GOLDEN = Path(__file__).parent / "golden"

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
  pluginsCustomConfig: {mine.yaml: "kind: EndpointPickerConfig"}
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
  epp: {pluginsCustomConfig: {other.yaml: x}, pluginsConfigFile: mine.yaml}
  inferencePool: {create: false}
  modelServers: {matchLabels: {app: vllm, tier: gold}, targetPorts: [{number: 8000}, {number: 8001}]}
"""
OF_A_LIBRARY_CHART = "epp: {replicas: 1}\ninferencePool: {create: true}\n"
CASES = {
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

    printed = CliRunner().invoke(main, ["migrate", "-"], input=CASES[case]).stdout.split("\n#")[0]
    parameters = command.make_context("serve", shlex.split(printed.replace("\\\n", " "))[2:]).params

    assert parameters["pool_name"] or parameters["endpoint_selector"]


@pytest.mark.parametrize("replicas", ["many", "[2]"])
def test_invalid_replicas_are_ignored(replicas: str) -> None:
    result = CliRunner().invoke(main, ["migrate", "-"], input=f"router: {{epp: {{replicas: {replicas}}}}}")

    assert (result.exit_code, "--ha-enable-leader-election" in result.stdout) == (0, False)
