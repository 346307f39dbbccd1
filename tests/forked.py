"""Starts of `endpick` that cost a fork instead of half a second of imports, for tests of what a process does and not of how it begins.

A server, one for each process that runs tests, has imported the host, the libraries and the built-in plugins, and no other plugin. It
forks for each start, and the new process goes on as `python -m endpick` would: with the arguments, environment, working directory, import
path and streams that the test gives it. Ask for it by `FORKED` in place of the interpreter; what tests how Python begins, what is imported,
or modules that stand in for libraries, asks for `sys.executable`. Variables that say how Python begins, and directories on its path with a
module that the server has imported already, make it begin so.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

SOURCES = tuple(
    Path(__file__).parents[1] / name for name in ("core", "builtin_plugins/builtin", "extras/gateway", "extras/lab", "extras/migrate")
)
_SPEC = importlib.util.find_spec("endpick")
AVAILABLE = sys.platform == "linux" and _SPEC is not None and (_SPEC.origin or "").startswith(str(SOURCES[0]))
"""A compiled endpick is started as its users start it."""
FORKED = "forked-python"
"""In place of the interpreter in `[FORKED, "-m", "endpick", …]`, for `subprocess` and for asyncio."""

_AT_FIRST = dict(os.environ)
_SET_LATER = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
_PR_SET_CHILD_SUBREAPER = 36
_INHERITED = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "OPENBLAS_NUM_THREADS", "GRPC_ENABLE_FORK_SUPPORT", "VIRTUAL_ENV")


@dataclass(frozen=True)
class Start:
    """What the new process is told."""

    arguments: Sequence[str]
    cwd: str
    environment: Mapping[str, str]
    leads_a_session: bool


class ForkServer:
    """Forks processes that are children of this one, as if it had started them."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._pid = 0
        self._imported: frozenset[str] = frozenset()

    def has_imported(self, name: str) -> bool:
        """Whether a module of this name would be found before any on the import path, or is run by Python itself."""
        self._connected()
        return name in self._imported or name in ("sitecustomize", "usercustomize")

    def start(self, start: Start, streams: tuple[int, int, int]) -> int:
        """Start `endpick` with these streams; its process id."""
        link = self._connected()
        asked = json.dumps(asdict(start)).encode()
        libc = ctypes.CDLL(None, use_errno=True)
        # The server's child is orphaned on purpose and so becomes a child of this process, which can wait for it.
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))]
            link.sendmsg([len(asked).to_bytes(4, "big")], ancillary)
            link.sendall(asked)
            answer = link.recv(4, socket.MSG_WAITALL)
        finally:
            libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert len(answer) == 4, "the server that forks has ended"
        return int.from_bytes(answer, "big")

    def _connected(self) -> socket.socket:
        if self._link is None or self._pid != os.getpid():
            self._pid = os.getpid()
            self._link, theirs = socket.socketpair()
            # As the starts that tests make: whatever their environment says is set for each of them after the fork.
            environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
            environment["PYTHONPATH"] = os.pathsep.join(map(str, SOURCES))
            with theirs:
                command = [sys.executable, str(Path(__file__).parent / "fork_server.py"), str(theirs.fileno())]
                self._server = subprocess.Popen(command, env=environment, pass_fds=(theirs.fileno(),), cwd="/")
            size = int.from_bytes(self._link.recv(4, socket.MSG_WAITALL), "big")
            self._imported = frozenset(self._link.recv(size, socket.MSG_WAITALL).decode().split())
            atexit.register(self._stop, self._server, self._link)
        return self._link

    def _stop(self, server: subprocess.Popen[bytes], link: socket.socket) -> None:
        if self._pid == os.getpid():
            link.close()
            server.wait()


_SERVER = ForkServer()
_execute_child = subprocess.Popen._execute_child  # type: ignore[attr-defined]


def _way_to_start(self: Any) -> Callable[..., None]:
    """In place of `Popen._execute_child`: that function itself for every other program, so that no frame of this file is on its stack."""
    first = self.args if isinstance(self.args, str | bytes | os.PathLike) else self.args[0]
    return partial(_fork if first == FORKED else _execute_child, self)


def _fork(self: Any, args: Any, *rest: Any) -> None:
    """What `Popen._execute_child` does, whose positional arguments these are since Python 3.11."""
    command = list(map(os.fsdecode, args))
    cwd, env, leads_a_session = rest[4], rest[5], rest[20]
    environment = dict(os.environ if env is None else env)
    if not AVAILABLE or _loads_otherwise(environment):
        _execute_child(self, [sys.executable, *command[1:]], None, *rest[1:])
        return
    p2cread, _, _, c2pwrite, _, errwrite = rest[9:15]
    assert command[1:3] == ["-m", "endpick"], "only `python -m endpick` is forked"
    streams = tuple(given if given != -1 else own for given, own in ((p2cread, 0), (c2pwrite, 1), (errwrite, 2)))
    self.pid = _SERVER.start(Start(command[3:], str(cwd or Path.cwd()), environment, bool(leads_a_session)), streams)
    self._child_created = True
    self._close_pipe_fds(*rest[9:15])


def _loads_otherwise(environment: Mapping[str, str]) -> bool:
    """Whether variables say how Python or the loader is to begin: then it has to."""
    here = {name: text for name, text in environment.items() if name.startswith(("LD_", "MALLOC_", "PYTHON")) and name not in _SET_LATER}
    if any(_AT_FIRST.get(name) != text for name, text in here.items()):
        return True
    searched = {Path(entry) for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry} - set(SOURCES)
    return any(_SERVER.has_imported(file.stem) for place in searched if place.is_dir() for file in place.iterdir())


subprocess.Popen._execute_child = property(_way_to_start)  # type: ignore[attr-defined]
