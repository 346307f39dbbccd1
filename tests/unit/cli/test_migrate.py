"""What `endpick migrate` makes of the ways in which llm-d's endpoint picker is started, word for word.

Set ENDPICK_UPDATE_GOLDEN=1 to write the golden files anew, then read the difference.
"""

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
def test_what_is_printed_is_what_the_golden_file_says(case: str) -> None:
    result = CliRunner().invoke(main, ["migrate", "-"], input=CASES[case])
    golden = GOLDEN / f"{case}.txt"
    if os.environ.get("ENDPICK_UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(result.stdout, encoding="utf-8")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == golden.read_text(encoding="utf-8")


def test_arguments_may_be_given_themselves() -> None:
    result = CliRunner().invoke(main, ["migrate", "--", "--pool-name=chat", "-v", "4"])

    assert (result.exit_code, result.stdout.split("\n#")[0]) == (0, "endpick serve \\\n  --pool-name=chat \\\n  --v=4")


def test_what_nothing_takes_ends_with_3_and_is_named() -> None:
    result = CliRunner().invoke(main, ["migrate", "--", "--lora-info-metric", "x", "--pool-nam=a", "--grpc-port=1"])

    assert result.exit_code == 3
    assert result.stdout == "endpick serve \\\n  --grpc-port=1\n"
    assert "error: llm-d has removed --lora-info-metric: name metrics with the parameter `engineConfigs`" in result.stderr
    assert "error: '--pool-nam=a' is no flag of llm-d's; did you mean '--pool-name'?" in result.stderr


@pytest.mark.parametrize("text", ["kind: ConfigMap\n", "{", "5\n"])
def test_what_holds_no_start_is_wrong_usage(text: str) -> None:
    assert CliRunner().invoke(main, ["migrate", "-"], input=text).exit_code == 2


@pytest.mark.parametrize("case", CASES)
def test_a_printed_command_is_one_that_serve_takes_and_says_where_endpoints_are(case: str) -> None:
    from endpick.cli.serve import command  # slow to import

    printed = CliRunner().invoke(main, ["migrate", "-"], input=CASES[case]).stdout.split("\n#")[0]
    parameters = command.make_context("serve", shlex.split(printed.replace("\\\n", " "))[2:]).params

    assert parameters["pool_name"] or parameters["endpoint_selector"]


HOSTILE = {
    "containers that are none": "spec: {template: {spec: {containers: [1, [], null, {command: 5, args: 7, env: 1}]}}}",
    "a boolean that is none": "q: !!bool zz",
    "a mapping that is none": "? {a: b}\n: 1",
    "what is not text": "\udcff",
    "what does not end": "# x\n" * 1_100_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_wrong_usage(text: str) -> None:
    result = CliRunner().invoke(main, ["migrate", "-"], input=text.encode(errors="surrogateescape"))

    assert (result.exit_code, "Traceback" in result.output) == (2, False)


@pytest.mark.parametrize("replicas", ["many", "1.0e+999", "[2]"])
def test_replicas_that_are_no_number_are_one(replicas: str) -> None:
    result = CliRunner().invoke(main, ["migrate", "-"], input=f"router: {{epp: {{replicas: {replicas}}}}}")

    assert (result.exit_code, "--ha-enable-leader-election" in result.stdout) == (0, False)


@pytest.mark.parametrize(
    "values",
    [
        r'router: {epp: {pluginsConfigFile: "a\nreboot\n#"}}',
        r'router: {epp: {}, modelServers: {type: "x\nreboot #"}}',
        r'router: {epp: {flags: {pool-name: "a\nreboot", "x\nreboot": 1}}}',
        r'router: {epp: {flags: {pool-name: "\e[2K\rendpick serve"}}}',
        r'router: {epp: {}, modelServers: {type: "\u202ex"}}',
    ],
)
def test_what_is_printed_can_be_given_to_a_shell_and_looks_like_what_it_is(values: str) -> None:
    """Where a file begins a line of its own, a shell that is given the output would run it."""
    result = CliRunner().invoke(main, ["migrate", "-"], input=values)

    words = shlex.split(result.stdout.replace("\\\n", " "), comments=True)
    assert "reboot" not in words
    assert words[:2] == ["endpick", "serve"]
    assert all(word.startswith("--") for word in words[2:])
    assert result.output.replace("\n", "").isprintable()
