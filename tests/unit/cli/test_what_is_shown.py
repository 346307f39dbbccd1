"""What a user typed, or a file is called, is shown as text: it commands no terminal. And no command waits for a pipe that is not served."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from forked import FORKED

COMMANDING = "a\x1b[31mb\u202ec\x9bd"
UNSAFE = set("\x1b\u202e\x9b")
PLAIN = "apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: max-score-picker\n"


def endpick(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = (FORKED, "-m", "endpick", *arguments)
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize(
    "arguments",
    [
        ("new", COMMANDING, "--kind", "scorer"),
        ("new", "short", "--vendor", COMMANDING, "--kind", "scorer"),
        ("new", "acme.short", "--kind", COMMANDING),
        (COMMANDING,),
        (f"--{COMMANDING}",),
        ("validate", f"--{COMMANDING}"),
        ("validate", COMMANDING),
        ("explain", COMMANDING),
        ("describe", COMMANDING),
        ("schema", COMMANDING),
        ("migrate", COMMANDING),
        ("lock", "--output-file", f"{COMMANDING}/x"),
        ("lock", "--output-file", COMMANDING),
        ("lock", "--check", "--output-file", f"no{COMMANDING}"),
        ("serve", f"--zap-log-level={COMMANDING}"),
        ("try", "--file", COMMANDING),
        ("doctor", "--serving", COMMANDING),
    ],
    ids=" ".join,
)
def test_what_is_given_is_shown_as_text(tmp_path, arguments):
    result = endpick(*arguments, folder=tmp_path)
    said = result.stdout + result.stderr
    assert not set(said) & UNSAFE
    assert "[31mb" in said or arguments[0] == "try", "it is shown"


def test_json_has_its_own_escapes(tmp_path):
    (tmp_path / COMMANDING).write_text("plugins: 7")
    result = endpick("validate", "--format", "json", COMMANDING, folder=tmp_path)
    assert not set(result.stdout) & UNSAFE
    assert COMMANDING in {each["span"]["file"] for each in json.loads(result.stdout)["diagnostics"] if each["span"]}


def test_a_pipe_that_a_shell_makes_is_read_and_written(tmp_path):
    (tmp_path / "config.yaml").write_text(PLAIN)
    script = (
        f'"{sys.executable}" -m endpick validate <(sleep 0; cat config.yaml) && "{sys.executable}" -m endpick lock -o >(cat > locked); wait'
    )
    result = subprocess.run(["/bin/bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert "cannot be" not in result.stderr, result.stderr
    assert ": ok" in result.stdout or "error" in result.stdout + result.stderr
