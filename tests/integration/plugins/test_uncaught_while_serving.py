"""What a plugin does where no call of endpick's stands, in a process whose output nothing reads."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

import grpc
import pytest

from integration.plugins.serving import OPTIONS, SOURCES, Picker, serving

pytestmark = pytest.mark.asyncio

CONFIG = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- {type: stray.scorer}
- {type: random-picker}
schedulingProfiles: [{name: default, plugins: [{pluginRef: stray.scorer}, {pluginRef: random-picker}]}]
dataLayer: {discovery: {pluginRef: file-discovery}}
"""
SOURCE = '''\
"""Does everything that a caller cannot catch."""

import asyncio
import sys
import threading
import warnings
import weakref

import numpy as np

from endpick.api import Scorer


class Finalized:
    def __del__(self):
        raise ValueError("gone " * 1000)


class Watched:
    """Something to refer to."""


def forgotten(_reference):
    raise KeyError("gone")


def generator():
    try:
        yield
    finally:
        raise OSError("closed")


async def unawaited():
    raise TypeError("nobody waits")


def in_a_thread():
    raise RuntimeError("alone")


class StrayScorer(Scorer):
    calls = 0

    def score(self, request, endpoints, state):
        StrayScorer.calls += 1
        for _ in range(20):
            Finalized()
        watched = Watched()
        self.reference = weakref.ref(watched, forgotten)
        del watched
        next(generator())
        self.task = asyncio.ensure_future(unawaited())
        threading.Thread(target=in_a_thread).start()
        warnings.warn(f"number {StrayScorer.calls}")
        for stream in (sys.stdout, sys.stderr):
            print("noise " * 2000, file=stream)
        sys.stdout.buffer.write(b"bytes without an end of line")
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            if stream is not sys.__stdout__ and stream is not sys.__stderr__:
                stream.close()
        return np.ones(len(endpoints))
'''
LEAVING = '''\
"""Each call would end the event loop in another way, in turn."""

import asyncio
import os
import sys

import numpy as np

from endpick.api import Scorer


def interrupted():
    raise KeyboardInterrupt


async def leave():
    sys.exit(7)


class StrayScorer(Scorer):
    calls = 0

    def score(self, request, endpoints, state):
        StrayScorer.calls += 1
        loop = asyncio.get_running_loop()
        case = StrayScorer.calls % 5
        if case == 0:
            loop.call_soon(sys.exit, 7)
        elif case == 1:
            loop.call_soon(interrupted)
        elif case == 2:
            self.task = asyncio.ensure_future(leave())
        elif case == 3:
            loop.stop()
        elif StrayScorer.calls == 4:  # once: connections get these numbers
            for descriptor in (0, 1, 2):
                try:
                    os.close(descriptor)
                except OSError:
                    pass
        return np.ones(len(endpoints))
'''
TALKATIVE = '''\
"""Logs two thousand lines in each call: by the logger that it was given, and by others."""

import logging

import numpy as np

from endpick.api import Scorer


class StrayScorer(Scorer):
    def score(self, request, endpoints, state):
        for number in range(500):
            self.context.logger.error("line %d %s", number, "x" * 100_000)
            self.context.logger.debug("not shown")
            logging.getLogger("stray").warning("line %d", number)
            logging.getLogger("endpick.serve").warning("line %d", number)
            logging.getLogger(f"endpick.plugin.{number}").warning("line %d", number, extra={"plugin": str(number)})
        return np.ones(len(endpoints))
'''
EVENTS = {"finalizer", "thread", "task", "warning", "output"}


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    information = folder / "stray-1.0.dist-info"
    information.mkdir(parents=True)
    (folder / "stray_code.py").write_text(SOURCE)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: stray\nVersion: 1.0\nRequires-Dist: endpick\n")
    (information / "entry_points.txt").write_text("[endpick.plugins.v1]\nstray.scorer = stray_code:StrayScorer\n")
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "endpoints.yaml").write_text('endpoints:\n- {name: a, address: 127.0.0.1, port: "1"}\n')
    return folder


async def _counts(picker: Picker) -> dict[tuple[str, str], float]:
    samples = await picker.samples("endpick_uncaught_total")
    return {(dict(labels)["event"], dict(labels)["origin"]): count for labels, count in samples.items()}


async def test_uncaught_errors_are_attributed_to_the_plugin(tmp_path, site):
    async with serving(tmp_path, path=[site]) as picker:
        for _ in range(50):
            assert (await picker.ask())[1] == 0
        origin = "stray.scorer (stray.scorer, stray 1.0)"
        async with asyncio.timeout(20):
            while (counts := await _counts(picker)).get(("thread", origin)) != 50:  # noqa: ASYNC110 - counted by another process
                await asyncio.sleep(0.02)
        assert {event for event, of in counts if of == origin} == EVENTS
        assert counts["finalizer", origin] == 50 * 22
        assert counts["warning", origin] == 50
        told = [event for event in picker.events if event["logger"] == "endpick.uncaught"]
        assert {event["plugin"] for event in told} == {origin}
        kinds = [event["kind"] for event in told]
        assert {kind: kinds.count(kind) for kind in EVENTS - {"output"}} == dict.fromkeys(EVENTS - {"output"}, 1)
        assert 0 < kinds.count("output") <= 100


async def _ports(reader: int) -> dict[str, object]:
    with os.fdopen(os.dup(reader), "rb", buffering=0) as log:
        while line := await asyncio.to_thread(log.readline):
            if b'"event":"serving"' in line:
                return json.loads(line)
    raise AssertionError("it did not start")


async def test_blocked_output_does_not_block_requests(tmp_path, site):
    reader, writer = os.pipe()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [site, *SOURCES]))}
    command = (sys.executable, "-m", "endpick", "serve", "config.yaml", *OPTIONS)
    process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, env=environment, stdout=writer, stderr=writer)
    os.close(writer)
    try:
        ports = await asyncio.wait_for(_ports(reader), 40)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{ports['ext_proc_port']}") as channel:
            picker = Picker(process, channel, int(str(ports["metrics_port"])))
            for _ in range(100):
                assert (await asyncio.wait_for(picker.ask(), 20))[1] == 0
            assert (await picker.health())[0] == 200
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 40) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(reader)


@pytest.mark.parametrize("transport", ["h2", "grpcio"])
async def test_plugin_cannot_end_the_process(tmp_path, site, transport):
    (site / "stray_code.py").write_text(LEAVING)
    async with serving(tmp_path, f"--transport={transport}", path=[site]) as picker:
        for _ in range(25):
            assert (await asyncio.wait_for(picker.ask(), 20))[1] == 0
        assert (await picker.health())[0] == 200
        assert sum(count for (event, _), count in (await _counts(picker)).items() if event == "task") >= 15
    assert [event for event in picker.events if event["event"] == "stopped"], "the log goes on when standard error is closed"


async def test_excessive_plugin_logs_are_throttled(tmp_path, site):
    (site / "stray_code.py").write_text(TALKATIVE)
    async with serving(tmp_path, path=[site]) as picker:
        for _ in range(3):
            assert (await picker.ask())[1] == 0
        counts = await _counts(picker)
    told = [event for event in picker.events if str(event["event"]).startswith("line ")]
    assert len(told) == 100, "of the instance, whose file the others are in"
    assert max(len(str(event["event"])) for event in told) < 20_000
    assert "more of them are counted only" in str(told[-1]["advice"])
    assert counts["log", "stray.scorer (stray.scorer, stray 1.0)"] == 3 * 2000 - 100
