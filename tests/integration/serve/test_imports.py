"""What a serving process imports: each module costs time until the first decision, and memory for good."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from urllib.request import urlopen

import pytest

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
dataLayer:
  discovery: {pluginRef: file-discovery}
"""
SERVED_WITHOUT = (
    "aiohttp",  # for the demo and the simulator
    "concurrent.futures.process",
    "cryptography",  # for a certificate of one's own: --secure-serving without --cert-path
    "google.protobuf.descriptor_pb2",  # for reflection
    "grpc",  # for --transport grpcio
    "grpc_reflection",
    "jh2.hpack",  # its tables in Python; we use the compiled part
    "jsonschema",  # for schemas and parameters that are unusual, or wrong
    "referencing",
    "cookiecutter",
    "grandalf",
    "multiprocessing",
    "packaging",  # for the requirements of third-party distributions
    "stringprep",  # for host names in other alphabets
    "endpick.cli.outputs",
    "endpick_kubernetes",  # a distribution of its own
    "lightkube",
    "endpick.simulation.demo",
    "endpick.serve.flow_control_metrics",
    "endpick.host.planning.document",
    "endpick.host.lock",  # for --locked
    "endpick.simulation",
    "endpick.testing",
    "numpy.fft",
    "numpy.random",
    "numpy.testing",
)
MOST_MODULES = 815
"""A few more than there are: 809, and one more where endpick is compiled; releases of libraries add to them, not by a fifth."""
SERVE = "import atexit, sys; from endpick.cli.main import main; atexit.register(lambda: print(*sys.modules)); main()"
OPTIONS = ("--host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0", "--secure-serving=false", "--log-format=json")


@pytest.fixture(scope="module")
def imported(tmp_path_factory) -> set[str]:
    """The modules of a process that served llm-d's default profile, was asked for its metrics, and ended in order."""
    folder = tmp_path_factory.mktemp("serving")
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "endpoints.yaml").write_text('endpoints: [{name: a, address: 127.0.0.1, port: "9"}]\n')
    command = [sys.executable, "-c", SERVE, "serve", "config.yaml", *OPTIONS]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            log = next((line for line in process.stderr if re.search(r'"event":"serving"', line)), "{}")
            with urlopen(f"http://127.0.0.1:{json.loads(log)['metrics_port']}/metrics", timeout=20) as page:
                assert b"endpick_" in page.read()
            process.send_signal(signal.SIGTERM)
            modules, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    return set(modules.split())


def test_serving_imports_nothing_that_it_does_not_use(imported):
    assert {"endpick.serve.process", "endpick_builtin.scorers.load", "numpy"} <= imported, "otherwise this proves nothing"
    assert [name for name in SERVED_WITHOUT if name in imported] == []


def test_serving_imports_no_more_modules_than_it_did(imported):
    assert len(imported) <= MOST_MODULES
