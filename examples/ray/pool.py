"""Runs model servers as Ray actors and keeps the file that `endpick up --endpoints` watches.

python pool.py --servers 4 --endpoints endpoints.json -- vllm serve MODEL --host 0.0.0.0 --port {port}
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


class ModelServer:
    """One server process on the actor's node."""

    def __init__(self, command: Sequence[str]) -> None:
        with socket.socket() as free:
            free.bind(("", 0))
            self._port = free.getsockname()[1]
        self._address = socket.gethostbyname(socket.gethostname())
        self._process = subprocess.Popen([part.format(port=self._port) for part in command])

    def endpoint(self) -> dict[str, str] | None:
        """Its entry in the file; None while it does not answer."""
        try:
            urllib.request.urlopen(f"http://{self._address}:{self._port}/health", timeout=2).close()
        except OSError:
            if self._process.poll() is not None:
                raise RuntimeError("the model server has ended") from None  # Ray reports it, and `look` starts another
            return None
        return {"name": f"{self._address}-{self._port}", "address": self._address, "port": str(self._port)}

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()


def write(path: Path, endpoints: Sequence[dict[str, str]]) -> None:
    """Replace the file at once: endpick never reads half of it."""
    text = json.dumps({"endpoints": endpoints})
    if not path.exists() or path.read_text() != text:
        new = path.with_suffix(".new")
        new.write_text(text)
        new.replace(path)


def look(servers: list[Any], start: Callable[[], Any], ask: Callable[[Any], dict[str, str] | None]) -> list[dict[str, str]]:
    """The endpoints of the servers that answer; one whose process, actor or node is gone is replaced."""
    found = []
    for place, server in enumerate(servers):
        try:
            found.append(ask(server))
        except Exception as problem:
            print(f"a model server is replaced: {problem}", flush=True)
            servers[place] = start()
    return [endpoint for endpoint in found if endpoint is not None]


def main() -> None:
    """Run on a Ray cluster."""
    import ray

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--gpus", type=float, default=1, help="GPUs of each")
    parser.add_argument("--endpoints", type=Path, required=True, help="on a disk that the gateway sees")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    actor = ray.remote(num_gpus=options.gpus)(ModelServer)

    def start() -> Any:
        return actor.remote(options.command)

    servers = [start() for _ in range(options.servers)]
    while True:
        write(options.endpoints, look(servers, start, lambda server: ray.get(server.endpoint.remote(), timeout=10)))
        time.sleep(1)


if __name__ == "__main__":
    main()
