"""What the demo's tests share: where Envoy is, and the process table, to tell what was left behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from endpick_gateway.envoy import EnvoyNotFoundError, find_envoy


class ProcessTable:
    """Linux's /proc, as far as a test needs it."""

    def children_of(self, pid: int) -> set[int]:
        """Living children of a process, without the fork server of the tests, which stays."""
        children = {child for child, (state, parent) in self._read().items() if parent == pid and state != "Z"}
        return {child for child in children if "fork_server.py" not in self.command(child)}

    def running_in(self, folder: Path) -> set[int]:
        """Living processes that were started in a folder or below, whichever process is their parent by now."""
        found = set()
        for pid, (state, _) in self._read().items():
            try:
                where = Path(f"/proc/{pid}/cwd").readlink()
            except OSError:
                continue
            if state != "Z" and folder in where.parents:
                found.add(pid)
        return found

    def command(self, pid: int) -> str:
        """The command line of a process, arguments separated by spaces."""
        try:
            return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            return ""

    def _read(self) -> dict[int, tuple[str, int]]:
        table = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                state, parent, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            table[int(folder.name)] = (state, int(parent))
        return table


@pytest.fixture(scope="session")
def processes() -> ProcessTable:
    """The process table; skips where there is none to read."""
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    return ProcessTable()


@pytest.fixture(scope="session")
def envoy() -> Path:
    """Envoy's binary; skips where there is none."""
    try:
        return find_envoy(os.environ, Path.cwd())
    except EnvoyNotFoundError as error:
        pytest.skip(str(error))
