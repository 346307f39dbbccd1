"""A real vLLM on CPU and its render server, on loopback, from a folder that `install_vllm.py` has filled."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

MODEL, ADAPTER = "tiny", "tiny-lora"
BLOCK = 32
"""Tokens per KV-cache block: vLLM's CPU attention takes multiples of 32 only."""
BLOCKS = 256
RUNNING_AT_ONCE = 4
START_SECONDS = 600.0
STOP_SECONDS = 20.0
_QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
_SMALL = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Server:
    """One process, as it is reached."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return answer.status == 200
        except (OSError, urllib.error.URLError):
            return False


def serve_command(install: Path, port: int, events_port: int, replay_port: int) -> list[str]:
    """A server that publishes its KV events on a port of its own, listening, as in a Pod."""
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{events_port}",
        "replay_endpoint": f"tcp://127.0.0.1:{replay_port}",
        "topic": f"kv@127.0.0.1:{port}@{MODEL}",
    }
    return [
        *(str(install / "venv/bin/vllm"), "serve", str(install / "tiny/model"), "--served-model-name", MODEL),
        *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", "4096", "--max-num-seqs", str(RUNNING_AT_ONCE)),
        *("--enforce-eager", "--block-size", str(BLOCK), "--num-gpu-blocks-override", str(BLOCKS)),
        *("--enable-prefix-caching", "--prefix-caching-hash-algo", "sha256_cbor", "--enable-prompt-tokens-details"),
        *("--kv-events-config", json.dumps(events)),
        *("--enable-lora", "--max-loras", "2", "--max-lora-rank", "8", "--lora-modules", f"{ADAPTER}={install / 'tiny/adapter'}"),
    ]


def render_command(install: Path, port: int) -> list[str]:
    """What turns prompts into tokens, without weights."""
    model = str(install / "tiny/model")
    own = ("--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "4096")
    return [str(install / "venv/bin/vllm"), "launch", "render", model, *own]


@dataclass
class Farm:
    """Processes that are started together, and end together."""

    folder: Path
    _processes: dict[Server, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, command: list[str], port: int) -> Server:
        server = Server(port)
        environment = os.environ | _QUIET | _SMALL | {"PYTHONHASHSEED": "0", "VLLM_SERVER_DEV_MODE": "1"}
        environment.pop("PYTHONPATH", None)
        with self._log(server).open("wb") as log:
            self._processes[server] = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        return server

    def wait(self) -> None:
        """Until all are healthy.

        Raises:
            RuntimeError: one ended, or time ran out; the message has the end of its log.
        """
        until = time.monotonic() + START_SECONDS
        for server, process in self._processes.items():
            while not server.is_healthy():
                if process.poll() is not None or time.monotonic() > until:
                    what = "ended" if process.poll() is not None else f"was not healthy within {START_SECONDS:.0f} s"
                    raise RuntimeError(f"the server {what}:\n" + "\n".join(self._log(server).read_text().splitlines()[-20:]))
                time.sleep(0.5)

    def stop(self) -> None:
        """Every process and those that it started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes.values():
                try:
                    os.killpg(process.pid, number)
                except ProcessLookupError:
                    continue
            until = time.monotonic() + STOP_SECONDS
            for process in self._processes.values():
                try:
                    process.wait(max(0.1, until - time.monotonic()))
                except subprocess.TimeoutExpired:
                    continue

    def _log(self, server: Server) -> Path:
        return self.folder / f"vllm-{server.port}.log"
