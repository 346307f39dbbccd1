"""Exceptions that raise when they are asked what they say, and answers that raise when they are looked at, in a serving process."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from integration.plugins.serving import serving

pytestmark = pytest.mark.asyncio

CONFIG = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- {type: hostile.scorer}
- {type: hostile.producer}
- {type: random-picker}
schedulingProfiles: [{name: default, plugins: [{pluginRef: hostile.scorer}, {pluginRef: random-picker}]}]
dataLayer: {discovery: {pluginRef: file-discovery}}
"""
SOURCE = '''\
"""Each call does harm in another way, in turn."""

import asyncio

import numpy as np

from endpick.api import DataProducer, Scorer


class Mute(Exception):
    def __str__(self):
        raise SystemExit(3)

    __repr__ = __str__


class Endless(Exception):
    def __str__(self):
        return str(self)


class Faceless(Exception):
    @property
    def __class__(self):
        raise SystemExit(4)


class Unknown(BaseException):
    """Of a kind that nothing expects."""


class Touchy(np.ndarray):
    def __array_ufunc__(self, *arguments, **keywords):
        raise SystemExit(5)

    def __len__(self):
        raise GeneratorExit


def circular():
    error = ValueError("x")
    error.__context__ = error.__cause__ = error
    return error


def group():
    return BaseExceptionGroup("both", [KeyboardInterrupt(), asyncio.CancelledError()])


THROWN = [Mute, Endless, Faceless, Unknown, GeneratorExit, circular, group, lambda: OSError("a\\nb\\x1b[31m" * 100_000)]


class HostileScorer(Scorer):
    """Throws, or answers what throws."""

    calls = 0

    def score(self, request, endpoints, state):
        HostileScorer.calls += 1
        case = HostileScorer.calls % (len(THROWN) + 1)
        if case == len(THROWN):
            return np.ones(len(endpoints)).view(Touchy)
        raise THROWN[case]()


class HostileProducer(DataProducer):
    """Waits, then throws."""

    calls = 0

    async def produce(self, request, endpoints, state):
        HostileProducer.calls += 1
        await asyncio.sleep(0)
        case = HostileProducer.calls % 7
        if case < 4:
            raise (Mute, Faceless, group, Unknown)[case]()
'''


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    information = folder / "hostile-1.0.dist-info"
    information.mkdir(parents=True)
    (folder / "hostile_code.py").write_text(SOURCE)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile\nVersion: 1.0\nRequires-Dist: endpick\n")
    targets = {"hostile.scorer": "hostile_code:HostileScorer", "hostile.producer": "hostile_code:HostileProducer"}
    lines = "".join(f"{name} = {target}\n" for name, target in targets.items())
    (information / "entry_points.txt").write_text(f"[endpick.plugins.v1]\n{lines}")
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "endpoints.yaml").write_text('endpoints:\n- {name: a, address: 127.0.0.1, port: "1"}\n')
    return folder


@pytest.mark.parametrize("transport", ["h2", "grpcio"])
async def test_every_request_is_answered_and_the_process_lives(tmp_path, site, transport):
    async with serving(tmp_path, "--circuit-faults=1000000", f"--transport={transport}", path=[site]) as picker:
        told = []
        for number in range(42):
            call = asyncio.ensure_future(picker.ask(request_id=f"r{number}"))
            done, _ = await asyncio.wait([call], timeout=20)
            assert done, f"request {number} was not answered"
            told.append("failed" if call.exception() else call.result()[1])
        assert 0 in told
        assert (await picker.health())[0] == 200
        faults = await picker.samples("endpick_plugin_faults_total")
        reasons = {dict(labels)["reason"] for labels in faults}
        assert reasons >= {"Mute", "Endless", "Faceless", "Unknown", "GeneratorExit", "ValueError", "BaseExceptionGroup", "OSError"}
        assert max(len(str(event)) for event in picker.events) < 40_000, "what an exception says has an end"


async def test_reloads_that_are_asked_for_until_the_end_leave_it_an_orderly_one(tmp_path, site):
    (tmp_path / "config.yaml").write_text(
        CONFIG.replace("- {type: hostile.scorer}\n- {type: hostile.producer}\n", "").replace("{pluginRef: hostile.scorer}, ", "")
    )
    async with serving(tmp_path, path=[site]) as picker, asyncio.timeout(40):
        for _ in range(500):
            picker.reload()
        assert (await picker.ask())[1] == 0
        picker.process.terminate()
        while picker.process.returncode is None:
            try:
                os.kill(picker.process.pid, signal.SIGHUP)  # `send_signal` would look whether it has ended, and take its exit code along
            except ProcessLookupError:
                break
            await asyncio.sleep(0.005)
