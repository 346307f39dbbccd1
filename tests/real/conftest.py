"""Two real vLLM servers and a renderer for a session of tests; skipped, with the reason, where there are none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from real.servers import Farm, Server, free_port, render_command, serve_command


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server, Server]]:
    """Two model servers and the renderer; `ENDPICK_VLLM_PORTS` names such that run already."""
    running = os.environ.get("ENDPICK_VLLM_PORTS", "")
    if running:
        first, second, renderer = (Server(int(port)) for port in running.split(","))
        yield first, second, renderer
        return
    install = Path(os.environ.get("ENDPICK_VLLM") or "/nonexistent")
    if not (install / "tiny" / "adapter" / "adapter_config.json").exists():
        reason = install / "reason"
        pytest.skip(f"no vLLM in {install}: {reason.read_text().strip() if reason.exists() else 'run `make real`, which installs one'}")
    farm = Farm(tmp_path_factory.mktemp("vllm"))
    try:
        servers = []
        for _ in range(2):
            port, events, replay = free_port(), free_port(), free_port()
            servers.append(farm.start(serve_command(install, port, events, replay), port))
        port = free_port()
        servers.append(farm.start(render_command(install, port), port))
        farm.wait()
        yield servers[0], servers[1], servers[2]
    finally:
        farm.stop()
