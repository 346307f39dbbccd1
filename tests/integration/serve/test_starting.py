"""What an operator sees when `endpick serve` will not start, and how it ends when it did."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from forked import FORKED
from integration.serve.gateway import RANDOM

PORTS = ("--host", "127.0.0.1", "--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0", "--secure-serving=false")
ENDING = ("serving", "draining: new requests are still served", "finishing", "stopped")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(RANDOM)
    (tmp_path / "endpoints.yaml").write_text('endpoints: [{name: a, address: 127.0.0.1, port: "8001"}]\n')
    return tmp_path


def serve(folder: Path, *arguments: str, config: str = "config.yaml") -> subprocess.CompletedProcess[str]:
    """Run a command that is expected to end by itself."""
    command = (FORKED, "-m", "endpick", "serve", config, *PORTS, *arguments)
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("option", "transport"), [("--grpc-port", "h2"), ("--grpc-port", "grpcio"), ("--grpc-health-port", "h2"), ("--metrics-port", "h2")]
)
def test_port_in_use_is_named_and_ends_with_5(folder, option, transport):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = serve(folder, option, str(port), "--transport", transport)

    assert result.returncode == 5
    assert f"error[E0801]: cannot listen on 127.0.0.1, port {port}: Address already in use" in result.stderr


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_an_unusable_certificate_ends_with_5(folder, content):
    if content is not None:
        for name in ("tls.crt", "tls.key"):
            (folder / name).write_text(content)
    result = serve(folder, "--secure-serving=true", "--cert-path", ".")

    assert result.returncode == 5
    assert "error[E0802]: " in result.stderr
    assert "tls.crt" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_configuration_without_discovery_ends_with_3(folder):
    (folder / "config.yaml").write_text("apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins: [{type: queue-scorer}]\n")
    result = serve(folder)

    assert result.returncode == 3
    assert "error[E0806]: the configuration names no endpoint discovery" in result.stderr
    assert "--> config.yaml:1:1" in result.stderr


def test_a_missing_endpoints_file_ends_with_5(folder):
    (folder / "endpoints.yaml").unlink()
    result = serve(folder)

    assert result.returncode == 5
    assert "error[E0706]: 'file-discovery' cannot discover endpoints: endpoint file endpoints.yaml cannot be read: No such" in result.stderr
    assert "--> config.yaml:4:26" in result.stderr


def test_mistakes_in_the_endpoints_file_are_notes(folder):
    (folder / "endpoints.yaml").write_text('endpoints:\n- {name: a, address: here, port: "1"}\n- {name: b, address: 10.0.0.1, port: "0"}\n')
    result = serve(folder)

    assert result.returncode == 5
    assert "endpoint file endpoints.yaml has 2 mistakes\n  --> config.yaml:4:26" in result.stderr
    assert "= note: line 2: `address` of 'default/a' must be an IP address such as 10.0.0.7, not 'here'" in result.stderr
    assert '= note: line 3: `port` of \'default/b\' must be "1" to "65535"' in result.stderr


def test_a_missing_plugin_type_ends_with_4(folder):
    (folder / "config.yaml").write_text(RANDOM.replace("random-picker", "randm-picker"))
    result = serve(folder)

    assert result.returncode == 4
    assert "config.yaml:5:9" in result.stderr
    assert "did you mean 'random-picker'?" in result.stderr


def test_missing_configuration_file_ends_with_3(folder):
    result = serve(folder, config="nowhere.yaml")

    assert result.returncode == 3
    assert "nowhere.yaml" in result.stderr


def test_configuration_given_twice_is_wrong_usage(folder):
    result = serve(folder, "--config-text", RANDOM)

    assert result.returncode == 2
    assert "give the configuration once" in result.stderr


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("--grpc-port=70000", "70000 is not in the range 0<=x<=65535"),
        ("--refresh-metrics-interval=0s", "'0s' is too short; write for example 50ms or 1m30s"),
        ("--drain-timeout=-1s", "'-1s' is too short; write for example 50ms or 1m30s"),
        ("--grpc-max-recv-msg-size=-1", "'-1' is too little; write for example 16Mi or 500k"),
        ("--grpc-keepalive-timeout=20", "'20' is not a duration such as 50ms or 1m30s"),
        ("--grpc-max-connections=0", "0 is not in the range x>=1"),
    ],
)
def test_invalid_values_are_wrong_usage(folder, option, complaint):
    result = serve(folder, option)

    assert result.returncode == 2
    assert complaint in result.stderr
    assert option.partition("=")[0] in result.stderr


@pytest.mark.parametrize("transport", ["h2", "grpcio"])
def test_the_largest_values_are_accepted(folder, transport):
    names = ("max-connection-age", "max-connection-age-grace", "keepalive-time", "keepalive-timeout")
    durations = [f"--grpc-{name}=2562047h" for name in names]
    counts = [f"--grpc-max-{name}={2**31 - 1}" for name in ("connections", "concurrent-streams")] + ["--grpc-max-recv-msg-size=1Pi"]
    ended = stopped_when_serving(folder, "--transport", transport, "--drain-timeout=0s", *durations, *counts)

    assert ended.returncode == 0


def test_behaviour_27_locked_start_refuses_unlocked_plugins(folder):
    (folder / "endpick.lock.json").write_text('{"format": 3, "distributions": []}')
    result = serve(folder, "--locked")

    assert result.returncode == 4
    assert "plugin: random-picker from endpick" in result.stderr
    assert "is not in the lock file" in result.stderr


def test_a_locked_start_needs_a_lock_file(folder):
    result = serve(folder, "--locked")

    assert result.returncode == 4
    assert "write one with `endpick lock`" in result.stderr


def stopped_when_serving(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Run a command until it serves, and have it end."""
    command = (FORKED, "-m", "endpick", "serve", "config.yaml", *PORTS, "--log-format", "json", *arguments)
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if '"event":"serving"' in line:
                process.terminate()
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_drains_and_ends_with_0(folder, number):
    command = (FORKED, "-m", "endpick", "serve", "config.yaml", *PORTS, "--log-format", "json")
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    events = []
    with process:
        for line in process.stderr:
            events.append(json.loads(line)["event"])
            if events[-1] == "serving":
                process.send_signal(number)

    assert process.returncode == 0
    assert [event for event in events if event in ENDING] == list(ENDING)


def test_every_instance_is_logged_at_start(folder):
    command = (FORKED, "-m", "endpick", "serve", "config.yaml", *PORTS, "--log-format", "json")
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    loaded = {}
    with process:
        for line in process.stderr:
            event = json.loads(line)
            if event["event"] == "plugin loaded":
                loaded[event["plugin"]] = event
            if event["event"] == "serving":
                process.terminate()

    assert loaded["random-picker"]["dist"] == "endpick"
    assert loaded["random-picker"]["reason"] == ""
    assert loaded["single-profile-handler"]["reason"] == "there is one scheduling profile and no profile handler"
    assert "waiting-queue-size" in loaded["core-metrics-extractor"]["produces"]
    assert "waiting-queue-size" in loaded["utilization-detector"]["consumes"]


def serving_restless(folder, fixture_project, plugin: str) -> subprocess.Popen[str]:
    """A process that serves with this scorer."""
    entry = f"plugins:\n- {{type: {plugin}}}\n"
    used = f"  plugins:\n  - {{pluginRef: {plugin}}}\n"
    (folder / "config.yaml").write_text(RANDOM.replace("\nplugins:\n", f"\n{entry}", 1).replace("  plugins:\n", used, 1))
    command = (FORKED, "-m", "endpick", "serve", "config.yaml", *PORTS, "--log-format", "json")
    environment = {**os.environ, "PYTHONPATH": str(fixture_project("restless"))}
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize(
    ("plugin", "signalled_at"),
    [("restless.busy", ["serving", "busy is being stopped"]), ("restless.slow", ["slow is being started", "slow is still busy"])],
)
def test_a_hanging_plugin_does_not_prevent_the_end(folder, fixture_project, plugin, signalled_at):
    process = serving_restless(folder, fixture_project, plugin)
    assert process.stderr is not None
    lines = []
    with process:
        for line in process.stderr:
            lines.append(line)
            if line.startswith("{") and json.loads(line)["event"] in signalled_at:
                process.terminate()

    assert process.returncode == 5, lines[-5:]
    assert json.loads(lines[-1])["event"] == "endpick ends at once: SIGTERM came a second time"


def test_a_process_that_has_not_ended_in_time_ends_at_once():
    script = (
        "import asyncio, os, signal\n"
        "from endpick.serve.main import _Shutdown\n"
        "from endpick.serve.lifecycle import Lifecycle\n"
        "from endpick.serve.settings import Control\n"
        "control = Control(lambda: None, Lifecycle())\n"
        "signal.signal(signal.SIGTERM, _Shutdown(control, asyncio.new_event_loop(), 0.2).signalled)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "while True: pass\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 5
    assert ended.stderr == "endpick ends at once: it had not ended 0.2 s after a signal\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_imports_ends_the_process_with_0(folder, make_distribution, number):
    source = f"import os\n\nos.kill(os.getpid(), {int(number)})\n"
    project = make_distribution("early", {"early.even": "early:Even"}, modules={"early": source})
    entry = "plugins:\n- {type: early.even}\n"
    (folder / "config.yaml").write_text(RANDOM.replace("\nplugins:\n", f"\n{entry}", 1))
    command = (sys.executable, "-m", "endpick", "serve", "config.yaml", *PORTS)
    environment = {**os.environ, "PYTHONPATH": str(project)}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")
