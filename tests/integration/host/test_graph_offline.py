"""`endpick graph` draws real plugins in three formats, and asks no server on the network for it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from referencing import Registry

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "examples" / "configs" / "in-flight-load.yaml"
NO_NETWORK = """\
import socket

def refuse(*arguments, **options):
    open("asked", "w").close()
    raise OSError("there is no network here")

socket.socket.connect = socket.socket.connect_ex = socket.socket.sendto = socket.getaddrinfo = refuse
"""


@pytest.fixture
def draw(run_cli, tmp_path):
    """`draw("dot")`: the graph of an example, drawn where every connection is refused."""
    (tmp_path / "sitecustomize.py").write_text(NO_NETWORK)

    def run(output: str) -> str:
        result = run_cli("graph", CONFIG, "--format", output, path=[tmp_path])
        assert (result.exit_code, result.stderr) == (0, "")
        assert not (tmp_path / "asked").exists()
        return result.stdout

    return run


def test_mermaid(draw):
    text = draw("mermaid")

    assert text.startswith("flowchart LR\n")
    assert "inflight-load-producer" in text
    assert "-->" in text


def test_dot(draw):
    text = draw("dot")

    assert text.startswith("digraph endpick {\n")
    assert text.rstrip().endswith("}")
    assert "->" in text


def test_json(draw):
    document = json.loads(draw("json"))

    jsonschema.Draft202012Validator(json.loads((ROOT / "schemas" / "graph.v1.json").read_text()), registry=Registry()).validate(document)


def test_each_format_is_the_same_each_time(draw):
    assert all(draw(output) == draw(output) for output in ("mermaid", "dot", "json"))
