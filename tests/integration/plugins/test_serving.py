"""`endpick serve` with plugins that differ from their lock, cannot start, or cannot stop: behaviours 27 and 44."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from forked import FORKED

REPOSITORY = Path(__file__).parents[3]
OPTIONS = ("--host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0", "--secure-serving=false", "--log-format=json")
DISCOVERY = "type: file-discovery\nparameters: {path: endpoints.yaml}"
TAIL = "dataLayer:\n  discovery: {endpoints: {pluginRef: file-discovery}}\n"


@pytest.fixture
def serve_and_stop(tmp_path):
    """Serve a configuration, send SIGTERM as soon as it serves, and give exit code and log."""
    (tmp_path / "endpoints.yaml").write_text('{"endpoints": [{"name": "a", "address": "127.0.0.1", "port": "9"}]}')

    def run(config: Path, path: Sequence[Path], *options: str) -> tuple[int, str]:
        search_path = os.pathsep.join(
            map(str, [*path, REPOSITORY / "core", REPOSITORY / "builtin_plugins" / "builtin", *sorted((REPOSITORY / "extras").iterdir())])
        )
        with subprocess.Popen(
            [FORKED, "-m", "endpick", "serve", str(config), *OPTIONS, *options],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": search_path},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            lines = []
            for line in process.stderr:
                lines.append(line)
                if '"event":"serving"' in line:
                    process.send_signal(signal.SIGTERM)
            return process.wait(timeout=60), "".join(lines)

    return run


def test_behaviour_44_all_plugins_are_stopped_in_reverse(fixture_project, config_with, serve_and_stop):
    config = config_with(DISCOVERY, "restless.calm", "restless.first", "restless.second", tail=TAIL)

    exit_code, log = serve_and_stop(config, [fixture_project("restless")])

    assert exit_code == 5
    assert "calm has stopped" in log, "it is stopped last, although the others failed"
    assert log.index("second cannot stop") < log.index("first will not stop")
    assert "restless.first" in log
    assert "restless 1.0" in log


def test_plugin_that_cannot_start_ends_the_start(fixture_project, config_with, serve_and_stop):
    exit_code, log = serve_and_stop(config_with(DISCOVERY, "restless.never", tail=TAIL), [fixture_project("restless")])

    assert exit_code == 5
    assert "no licence for restless.never" in log
    assert "Traceback" not in log


def test_behaviour_27_serving_locked_refuses_what_has_changed(fixture_project, config_with, run_cli, serve_and_stop, tmp_path):
    site = tmp_path / "site"
    shutil.copytree(fixture_project("good-scorers"), site)
    config = config_with(DISCOVERY, "acme.zone", tail=TAIL)
    run_cli("lock", path=[site])

    unchanged, _ = serve_and_stop(config, [site], "--locked")
    with (site / "good_scorers.py").open("a") as module:
        module.write("raise AssertionError('imported')\n")
    changed, log = serve_and_stop(config, [site], "--locked")
    (tmp_path / "endpick.lock.json").unlink()
    without, no_lock = serve_and_stop(config, [site], "--locked")

    assert (unchanged, changed, without) == (0, 4, 4)
    assert "error[E0308]: files of good-scorers 1.0 were changed after it was installed: good_scorers.py" in log
    assert "error[E0321]" in no_lock


def test_log_lines_of_an_instance_say_whose_they_are(fixture_project, config_with, serve_and_stop):
    config = config_with(DISCOVERY, "name: quiet\ntype: restless.calm", tail=TAIL)

    _, log = serve_and_stop(config, [fixture_project("restless")])

    (record,) = [json.loads(line) for line in log.splitlines() if "calm has stopped" in line]
    assert record["plugin"] == "quiet (restless.calm, restless 1.0)"
