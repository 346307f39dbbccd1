"""The gateway guides, each command as printed, in a network and file system that are thrown away."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.pages import ROOT, blocks
from docs.replay import commands
from docs.test_envoy_examples import write_certificates
from integration.gateway.running import envoy

BEHIND_ENVOY = ROOT / "docs" / "how-to" / "run-behind-envoy.md"
WITHOUT_KUBERNETES = ROOT / "docs" / "how-to" / "run-without-kubernetes.md"
MARK = "not replayed, a test runs it in a network of its own"
NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "bash", "-euxc")
OWN_NETWORK = """\
mount -t tmpfs tmpfs /run
mkdir /run/upper /run/work
mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/upper,workdir=/run/work /etc
printf '127.0.0.1 gpu-1\\n127.0.0.2 gpu-2\\n' >> /etc/hosts
ip link set lo up
ip addr add 10.0.0.10 dev lo
ip addr add 10.0.0.11 dev lo
"""
MODEL_SERVERS = "endpick sim-server --host 0.0.0.0 --port 8000 --decode-ms 1 &\n"
CERTIFICATES = "mkdir -p /etc/endpick/tls /etc/envoy; cp tls.crt tls.key /etc/endpick/tls; cp endpick-ca.crt /etc/envoy\n"
WAIT = "curl --silent --show-error --output /dev/null --retry 60 --retry-delay 1 --retry-connrefused http://127.0.0.1:{}/\n"

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The reader's folder, with the files of the guides, `endpick` and `envoy` on the path; skips where networks cannot be made."""
    possible = os.geteuid() == 0 and all(map(shutil.which, ("unshare", "ip", "curl")))
    if not possible or subprocess.run([*NAMESPACES, OWN_NETWORK], capture_output=True, check=False).returncode:
        pytest.skip("only root with unshare, ip and curl can make a network for this")
    script = tmp_path / "bin" / "endpick"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m endpick "$@"\n')
    script.chmod(0o755)
    script.with_name("envoy").symlink_to(envoy())
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for block in blocks(BEHIND_ENVOY):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
    write_certificates(tmp_path)
    return tmp_path


def printed(page: Path) -> Iterator[str]:
    """The commands of the marked blocks."""
    found = [command.text for block in blocks(page) if block.mark == MARK for command in commands(block)]
    assert found
    return (command for command in found if not command.startswith("pip install"))


def run(folder: Path, script: str) -> str:
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    command = [*NAMESPACES, OWN_NETWORK + MODEL_SERVERS + WAIT.format(8000) + script]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path}, check=False, timeout=110, **output)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("example", ["plaintext", "tls"])
def test_envoy_guide_runs_as_printed(folder: Path, example: str):
    other = {"plaintext": ("--cert-path", "tls.yaml"), "tls": ("--secure-serving=false", "plaintext.yaml")}[example]
    script = CERTIFICATES
    for command in printed(BEHIND_ENVOY):
        if not any(word in command for word in other):
            runs_on = command.startswith(("endpick serve", "envoy"))
            script += f"{command} &\n{WAIT.format(9090 if 'serve' in command else 8081)}" if runs_on else f"{command}\n"
    output = run(folder, script)
    assert output.count('"choices"') == 1
    assert output.count("\nllm_d_epp_scheduler_attempts_total{") >= 1


def test_guide_without_kubernetes_runs_as_printed(folder: Path):
    (request,) = (command for command in printed(WITHOUT_KUBERNETES) if command.startswith("curl"))
    gateways, script = 0, ""
    for command in printed(WITHOUT_KUBERNETES):
        if command.startswith("endpick up") and ">" not in command:
            gateways += 1
            script += f"{command} &\ngateway=$!\n{WAIT.format(8080)}{request}\nkill $gateway; wait $gateway\n"
        elif command != request:
            script += f"{command}\n"
    assert gateways == 5
    assert run(folder, script).count('"choices"') == gateways
