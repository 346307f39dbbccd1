"""Exit codes of every verb, as documented in the reference of the command line."""

from __future__ import annotations

import socket

import pytest
from click.testing import CliRunner

from endpick.cli.main import main
from endpick.cli.verbs import HOST_VERBS, installed_verbs
from endpick.diagnostics import ExitCode

HEADER = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
FILES = {
    "good.yaml": HEADER + "plugins: [{type: random-picker}]\n",
    "other.yaml": HEADER + "plugins: [{type: queue-scorer}]\n",
    "unknown.yaml": HEADER + "plugins: [{type: queue-scorrer}]\n",
    "wrong.yaml": HEADER + "plugin: []\n",
    "both.yaml": HEADER + "plugin: []\nplugins: [{type: queue-scorrer}]\n",
    "pool.yaml": "endpoints: [{name: a, address: 10.0.0.1, port: 8000}]\n",
    "request.json": '{"model": "m", "prompt": "x"}',
}
TRY = "try --request request.json --endpoints pool.yaml"
READING = ("serve", "validate", "plan", "graph", "diff good.yaml", TRY)  # verbs that read a configuration
CASES = [
    *((f"{verb} unknown.yaml", ExitCode.PLUGIN_UNUSABLE) for verb in READING),
    *((f"{verb} {file}.yaml", ExitCode.CONFIG_INVALID) for verb in READING for file in ("wrong", "both", "missing")),
    *((f"{verb} --no-such-flag", ExitCode.USAGE) for verb in (*HOST_VERBS, *installed_verbs().verbs)),
    *((f"{verb} acme.unknown", ExitCode.PLUGIN_UNUSABLE) for verb in ("describe", "schema", "test")),
    ("no-such-verb", ExitCode.USAGE),
    ("validate", ExitCode.USAGE),
    ("explain E9999", ExitCode.USAGE),
    ("list --kind scorers", ExitCode.USAGE),
    ("new acme.x --kind scorers", ExitCode.USAGE),
    ("try good.yaml --request request.json --endpoints good.yaml", ExitCode.USAGE),
    ("migrate -- --no-such-flag=1", ExitCode.CONFIG_INVALID),
    ("migrate good.yaml", ExitCode.OK),
    ("migrate missing.yaml", ExitCode.FAILED),
    ("try good.yaml --request missing.json --endpoints pool.yaml", ExitCode.FAILED),
    ("try good.yaml --request request.json --endpoints missing.yaml", ExitCode.FAILED),
    ("schema --output missing/schema.json", ExitCode.FAILED),
    ("lock --output-file missing/lock.json", ExitCode.FAILED),
    ("lock --check --output-file missing.json", ExitCode.PLUGIN_UNUSABLE),
    ("serve good.yaml --locked --lock-file missing.json", ExitCode.PLUGIN_UNUSABLE),
    ("new acme.x --kind scorer --output good.yaml", ExitCode.USAGE),
    ("sim-server --port BUSY", ExitCode.FAILED),
    ("validate good.yaml --endpoints pool.yaml", ExitCode.OK),
    ("plan good.yaml", ExitCode.OK),
    ("diff good.yaml good.yaml", ExitCode.OK),
    ("diff good.yaml other.yaml", ExitCode.DIFFERENT),
    (f"{TRY} good.yaml", ExitCode.OK),
]


@pytest.mark.parametrize(("arguments", "expected"), CASES, ids=[arguments for arguments, _ in CASES])
def test_exit_code_is_as_documented(tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    with socket.create_server(("127.0.0.1", 0)) as busy:
        result = CliRunner().invoke(main, arguments.replace("BUSY", str(busy.getsockname()[1])).split())

    assert result.exit_code == expected, result.output
