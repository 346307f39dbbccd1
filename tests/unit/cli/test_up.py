"""`endpick up`: its mistakes, and the configuration it prints."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from endpick.cli.main import main
from endpick.diagnostics import ExitCode
from endpick_gateway.commands.up import server_of

GOLDEN = Path(__file__).parent / "golden" / "up-envoy.yaml"
SERVER = "--server=http://127.0.0.1:8000"
WITH_DISCOVERY = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
dataLayer: {discovery: {endpoints: {pluginRef: file-discovery}}}
"""
ENVOY = "envoy-binary"
MISTAKES = {
    "no servers": ([], ExitCode.USAGE, "there are no model servers: give --server http://host:8000"),
    "a config without discovery": (["plain.yaml"], ExitCode.USAGE, "--simulate 4"),
    "no URL": (["--server=gpu-1:8000"], ExitCode.USAGE, "'gpu-1:8000' is not the URL of a model server"),
    "an unknown name": (["--server=http://gpu.invalid:1"], ExitCode.FAILED, "the name of --server http://gpu.invalid:1 cannot be resolved"),
    "two sources": (["--endpoints=e.yaml", SERVER], ExitCode.USAGE, "--endpoints is for all model servers"),
    "servers and discovery": (["discovery.yaml", SERVER], ExitCode.USAGE, "discovery.yaml names the discovery 'file-discovery'"),
    "half a certificate": ([SERVER, "--tls-key=k.pem"], ExitCode.USAGE, "--tls-certificate and --tls-key belong together"),
    "an unreadable certificate": (
        [SERVER, "--port=0", "--tls-certificate=c.pem", "--tls-key=k.pem"],
        ExitCode.FAILED,
        "error[E0802]: TLS file",
    ),
    "no Envoy": ([SERVER], ExitCode.FAILED, "error[E0809]: $ENDPICK_ENVOY names /nowhere"),
    "a port in use": ([SERVER, "--host=127.0.0.1", "--port=TAKEN"], ExitCode.FAILED, "error[E0801]: cannot listen on 127.0.0.1, port "),
    "a broken Envoy configuration": ([SERVER, "--envoy-config=plain.yaml"], ExitCode.FAILED, "it has no cluster named endpick"),
    "a wrong configuration": (["wrong.yaml", SERVER], ExitCode.PLUGIN_UNUSABLE, "error[E0301]"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistake_is_named_with_its_exit_code(case: str, tmp_path: Path, run_cli):
    arguments, code, message = MISTAKES[case]
    (tmp_path / "plain.yaml").write_text("apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n")
    (tmp_path / "wrong.yaml").write_text("apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins: [{type: ghost}]\n")
    (tmp_path / "discovery.yaml").write_text(WITH_DISCOVERY)
    envoy = tmp_path / ENVOY
    envoy.touch(mode=0o755)
    environment = {"ENDPICK_ENVOY": "/nowhere" if case == "no Envoy" else str(envoy)}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = [each.replace("TAKEN", str(taken.getsockname()[1])) for each in arguments]
        result = run_cli("up", *given, environment=environment)
    assert message in result.stderr
    assert result.exit_code == code


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("http://gpu-1:8000", ("gpu-1", 8000)),
        ("http://10.0.0.1", ("10.0.0.1", 80)),
        ("http://[fd00::1]:8000/", ("fd00::1", 8000)),
        *((wrong, None) for wrong in ("gpu-1", "https://gpu-1", "http://gpu-1/v1", "http://gpu-1:x", "http://u@gpu-1", "http://", "")),
    ],
)
def test_server_url_is_host_and_port(url: str, server: tuple[str, int] | None):
    try:
        found = server_of(url)
    except ValueError:
        assert server is None
    else:
        assert (found.host, found.port) == server


def test_printed_envoy_configuration_matches_the_golden_file():
    result = CliRunner().invoke(main, ["up", "--print-envoy", "--emit-endpoint-scores"])
    if os.environ.get("ENDPICK_UPDATE_GOLDEN"):
        GOLDEN.write_text(result.stdout)
    assert result.stdout == GOLDEN.read_text()
