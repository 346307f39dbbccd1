"""Files that an operator should not write and one day will: `endpick validate` judges each in bounded time and memory, at its place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

HEAD = "apiVersion: endpick/v1alpha1\nkind: EndpointPickerConfig\n"
WEIGHTED = (
    HEAD + "plugins: [{type: queue-scorer}]\nschedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer, weight: %s}]}]\n"
)
MEMORY_KILOBYTES, CPU_SECONDS = 1_500_000, 20
SOURCES = [str(Path(__file__).parents[3] / name) for name in ("core", "builtin_plugins/builtin")]

ALIAS_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGE_BOMB = HEAD + "x0: &m0 {k: 1}\n" + "".join(f"x{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}], k{n}: 1}}\n" for n in range(1, 10))

FILES = {
    "an alias bomb": (ALIAS_BOMB, [("E0104", 5)]),
    "a merge bomb": (MERGE_BOMB, [("E0104", 8)]),
    "10 MB of comments": (HEAD + "# x\n" * 2_600_000, [("E0104", 1)]),
    "10 MB of plugins": (HEAD + "plugins:\n" + "- {type: queue-scorer}\n" * 440_000, [("E0104", 1)]),
    "one value of 10 MB": (HEAD + f"plugins: '{'x' * 10_000_000}'\n", [("E0104", 1)]),
    "deep lists": ("[" * 200_000, [("E0104", 1)]),
    "many aliases": (HEAD + f"x: &a [1]\ny: [{'*a, ' * 50_000}]\n", [("E0104", 4)]),
    "a merge conflict": (HEAD + "<<<<<<< ours\nplugins: []\n=======\nhooks: []\n>>>>>>> theirs\n", [("E0106", 3)]),
    "a merge key": (HEAD + "plugins: [&q {type: queue-scorer}, {<<: *q, name: other}]\n", []),
    "a merge key of no mapping": (HEAD + "plugins: [&q queue-scorer, {<<: *q}]\n", [("E0203", 3), ("E0112", 3)]),
    "a duplicate key": (HEAD + "plugins: []\nplugins: []\n", [("E0102", 4)]),
    "a tag that runs code": (WEIGHTED % "!!python/object/apply:os.system ['touch executed']", [("E0103", 4)]),
    "an indentation with a tab": (HEAD + "plugins:\n\t- type: queue-scorer\n", [("E0109", 4)]),
    "Windows line ends": ((WEIGHTED % "1").replace("\n", "\r\n"), []),
    "a byte order mark": ("\ufeff" + WEIGHTED % "1", []),
    "a NUL": (HEAD + "plugins: \0", [("E0101", 3)]),
    "two documents": (HEAD + "---\n" + HEAD, [("E0107", 3)]),
    "nothing": ("", [("E0108", 1)]),
    "a Cyrillic letter": ((WEIGHTED % "1").replace("type: queue", "type: qu\u0435ue"), [("E0301", 3), ("E0501", 4)]),
    "a zero-width space": ((WEIGHTED % "1").replace("pluginRef: queue", "pluginRef: queue\u200b"), [("E0501", 4)]),
    **{f"the weight {number}": (WEIGHTED % number, []) for number in ("1e3", "0x10", "+1", "1.")},
    **{f"the weight {text}": (WEIGHTED % text, [("E0203", 4)]) for text in ("on", "yes", "12:30:45", "2026-01-01", '"1"')},
    **{f"the weight {number}": (WEIGHTED % number, [("E0207", 4)]) for number in (".nan", ".inf", "-.inf", "1e999")},
    "the weight 012": (WEIGHTED % "012", [("E0213", 4)]),
    "5000 mistakes": (HEAD + "plugins:\n" + "- {typo: x}\n" * 5_000, [("E0201", 4 + n) for n in range(5_000)]),
}


@pytest.mark.parametrize(("text", "errors"), FILES.values(), ids=FILES)
def test_a_hostile_file_is_judged_within_bounds(tmp_path: Path, text: str, errors: list[tuple[str, int]]) -> None:
    (tmp_path / "config.yaml").write_text(text, encoding="utf-8", newline="")
    limits = f"ulimit -v {MEMORY_KILOBYTES}; ulimit -t {CPU_SECONDS}; exec "
    command = [sys.executable, "-m", "endpick", "validate", "config.yaml", "--endpoints", "pool.yaml", "--format", "json"]

    result = subprocess.run(
        ["sh", "-c", f'{limits} "$@"', "sh", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(SOURCES), "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert result.stderr == ""
    found = [(one["code"], one["span"]["line"]) for one in json.loads(result.stdout)["diagnostics"] if one["severity"] == "error"]
    assert [one for one in found if one not in errors] == []
    assert found[:1] == errors[:1]
    assert (result.returncode == 0) == (not errors)
    assert not (tmp_path / "executed").exists()
