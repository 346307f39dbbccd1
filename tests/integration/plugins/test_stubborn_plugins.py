"""Plugins that do not end when they are asked to, in a real `endpick serve`: reloads, requests and the end of the process wait for none."""

from __future__ import annotations

import asyncio

import pytest

from integration.plugins.serving import serving
from integration.serve.gateway import RANDOM

pytestmark = [pytest.mark.long, pytest.mark.asyncio]

STUBBORN = """\
import asyncio
import threading
import time

import numpy as np
from endpick.api import DataCollector, DataKey, DataProducer, Parameters, PollingSource, Scorer

SEEN = DataKey("stubborn/seen", float)


class Where(Parameters):
    where: str = ""
    interval: object = 0.05


async def go_on():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass


class IgnoredCancellation(Scorer[Where]):
    \"\"\"Goes on where its parameters say.\"\"\"

    async def start(self):
        if self.parameters.where == "task":
            self.task = asyncio.get_running_loop().create_task(go_on())
        if self.parameters.where == "thread":
            threading.Thread(target=time.sleep, args=(3600,)).start()

    async def stop(self):
        if self.parameters.where == "stop":
            await go_on()

    def score(self, request, endpoints, state):
        return np.ones(len(endpoints))


class Source(PollingSource[Where]):
    \"\"\"Has an interval that may be none.\"\"\"

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.interval_seconds = self.parameters.interval

    async def poll(self, endpoint):
        return 1.0


class Collector(DataCollector):
    \"\"\"Writes what comes.\"\"\"

    produces = (SEEN,)

    def collect(self, payload, writer):
        writer.set(SEEN, payload)


class Reader(Scorer):
    \"\"\"Reads it.\"\"\"

    consumes = (SEEN,)

    def score(self, request, endpoints, state):
        return np.nan_to_num(endpoints[SEEN])
"""
TYPES = {f"stubborn.{name.lower()}": f"stubborn:{name}" for name in ("IgnoredCancellation", "Source", "Collector", "Reader")}
ENDPOINTS = 'endpoints: [{name: a, address: 127.0.0.1, port: "1"}]\n'


@pytest.fixture
def project(make_distribution):
    return make_distribution("stubborn", TYPES, modules={"stubborn": STUBBORN})


@pytest.mark.parametrize("where", ["task", "thread"])
async def test_leftover_tasks_and_threads_do_not_block_the_exit(tmp_path, project, where):
    (tmp_path / "endpoints.yaml").write_text(ENDPOINTS)
    plugin = f"\nplugins:\n- {{type: stubborn.ignoredcancellation, parameters: {{where: {where}}}}}\n"
    used = "  plugins:\n  - {pluginRef: stubborn.ignoredcancellation}\n"
    (tmp_path / "config.yaml").write_text(
        RANDOM.replace("\nplugins:\n", plugin, 1).replace("dataLayer", f"schedulingProfiles:\n- name: default\n{used}dataLayer")
    )
    async with serving(tmp_path, "--finish-timeout=0s", path=[project]) as picker:
        assert await picker.ask() == ("127.0.0.1:1", 0)
        picker.process.terminate()
        async with asyncio.timeout(30):
            await picker.process.wait()


async def test_reload_to_a_wrong_interval_is_refused(tmp_path, project):
    (tmp_path / "endpoints.yaml").write_text(ENDPOINTS)
    source = "- {name: source, type: stubborn.source, parameters: {interval: %s}}"
    config = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
%s
- {type: stubborn.collector}
- {type: stubborn.reader}
- {type: max-score-picker}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: stubborn.reader}, {pluginRef: max-score-picker}]
dataLayer:
  injectDefaults: false
  discovery: {endpoints: {pluginRef: file-discovery}}
  sources: [{pluginRef: source, collectors: [{pluginRef: stubborn.collector}]}]
"""
    (tmp_path / "config.yaml").write_text(config % (source % "0.05"))
    async with serving(tmp_path, path=[project]) as picker:
        for step, nonsense in enumerate(("soon", "-1"), 1):
            (tmp_path / "config.yaml").write_text(config % (source % nonsense))
            picker.reload()
            await picker.logged("configuration refused", times=step)
        assert len(await picker.logged("its `interval_seconds` is", times=2)) == 2
        before = sum((await picker.samples("endpick_polls_total")).values())
        async with asyncio.timeout(20):
            while sum((await picker.samples("endpick_polls_total")).values()) < before + 5:  # noqa: ASYNC110 - counted by another process
                await asyncio.sleep(0.05)
        assert await picker.ask() == ("127.0.0.1:1", 0)
