"""Follows the tutorial: a new virtual environment, every file, every command, the output as shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.pages import ROOT, TUTORIAL, Block, blocks
from docs.replay import Shell, as_shown, commands

pytestmark = pytest.mark.long

DOWNLOAD_SECONDS = 400


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this checkout, for `pip install endpick`."""
    folder = tmp_path_factory.mktemp("wheelhouse")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=100)
    return folder


@pytest.fixture
def reader(tmp_path: Path, wheelhouse: Path) -> Shell:
    """The terminal of a reader who has only Python; folder and activated environment persist between commands."""
    state = tmp_path / "state"
    remember = f'trap \'code=$?; pwd > "{state}"; declare -p PATH VIRTUAL_ENV >> "{state}" 2>/dev/null; exit $code\' EXIT'
    recall = f'if [ -f "{state}" ]; then cd "$(head -n 1 "{state}")"; eval "$(tail -n +2 "{state}")"; fi'
    clean = {name: "" for name in os.environ if name.startswith(("ENDPICK_", "PYTHON"))}
    return Shell(tmp_path, {**clean, "PIP_FIND_LINKS": str(wheelhouse), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}, f"{recall}\n{remember}")


@pytest.fixture
def index_is_reachable() -> None:
    """Skips without a package index: the commands download."""
    probe = [sys.executable, "-m", "pip", "index", "versions", "hatchling"]
    if subprocess.run(probe, capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("needs a package index")


@pytest.mark.timeout(600)
def test_the_tutorial_ends_with_live_traffic(reader: Shell, index_is_reachable, follow: Callable[[Block], str]):
    output = "".join(follow(block) for block in blocks(TUTORIAL))
    figures = re.findall(r"^(sticky|random-picker) +(\d+) +(\d+) .*? (\d+) %", output, re.MULTILINE)
    (sticky, requests, failed, hits), (random, _, _, random_hits) = figures
    assert (sticky, random, failed) == ("sticky", "random-picker", "0")
    assert int(requests) > 100
    assert int(hits) > int(random_hits), output


@pytest.fixture
def follow(reader: Shell, tmp_path: Path) -> Callable[[Block], str]:
    """Follow one block; returns the output of its commands."""

    def do(block: Block) -> str:
        if block.file:
            reader.run(f"cat > {block.file} <<'END OF FILE'\n{block.text}END OF FILE")
            assert reader.status == 0
            return ""
        if block.language != "console":
            return ""
        printed = ""
        for command in commands(block):
            output = reader.run(command.text, DOWNLOAD_SECONDS)
            assert as_shown(command.expected, output), f"{block.name}: $ {command.text}\nprints\n{output}\nnot\n{command.expected}"
            printed += output
        return printed

    return do
