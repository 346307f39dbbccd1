"""Signals that reach `endpick serve` while it starts: each is sent by a plugin whose module is being imported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from integration.plugins.serving import OPTIONS, SOURCES
from integration.serve.gateway import RANDOM

SIGNALLING = """\
import os
import signal

import numpy as np

from endpick.api import Scorer

{sent}


class Even(Scorer):
    \"\"\"Every endpoint is equal.\"\"\"

    def score(self, request, endpoints, state):
        return np.ones(len(endpoints))
"""


@pytest.fixture
def started(tmp_path, make_distribution):
    """`started("SIGHUP")`: exit code and events of a process that gets the signal while it imports; it is ended when `until` was logged."""

    def start(name: str, until: str) -> tuple[int, list[str]]:
        source = SIGNALLING.format(sent=f"os.kill(os.getpid(), signal.{name})")
        project: Path = make_distribution("early", {"early.even": "early:Even"}, modules={"early": source})
        entry, used = "plugins:\n- {type: early.even}\n", "  plugins:\n  - {pluginRef: early.even}\n"
        (tmp_path / "config.yaml").write_text(RANDOM.replace("\nplugins:\n", f"\n{entry}", 1).replace("  plugins:\n", used, 1))
        (tmp_path / "endpoints.yaml").write_text('endpoints: [{name: a, address: 127.0.0.1, port: "1"}]\n')
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [project, *SOURCES]))}
        command = (sys.executable, "-m", "endpick", "serve", "config.yaml", *OPTIONS)
        events = []
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                events.append(json.loads(line)["event"])
                if events[-1] == until:
                    process.send_signal(signal.SIGTERM)
        return process.returncode, events

    return start


def test_a_reload_that_is_asked_for_during_the_start_is_made_after_it(started):
    code, events = started("SIGHUP", until="configuration replaced")

    assert code == 0
    assert events.index("serving") < events.index("configuration replaced")


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGALRM", "SIGPROF", "SIGIO", "SIGRTMIN", "SIGRTMAX"])
def test_a_signal_without_a_meaning_does_not_end_the_process(started, name):
    code, events = started(name, until="serving")

    assert code == 0
    assert events[-1] == "stopped"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_process_that_is_told_to_end_while_it_imports_ends_in_order_and_blames_no_plugin(started, name):
    """Process 1 of a container would ignore SIGTERM otherwise and serve until it is killed; SIGINT would show where Python was."""
    assert started(name, until="never") == (0, [])
