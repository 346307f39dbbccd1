"""Running the endpoint discovery: start-up waits for it, later failures are survived."""

from __future__ import annotations

import asyncio

import pytest

from endpick.api import ConfigurationError, Endpoint
from endpick.api.discovery import EndpointDiscovery
from endpick.data.discovery import DiscoveryTask
from endpick.data.table import EndpointTable


def now() -> float:
    return asyncio.get_running_loop().time()


class Scripted(EndpointDiscovery):
    """Runs one step of its script per start."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.started_at: list[float] = []
        self.script = list(type(self).steps)

    async def run(self, registry):
        self.started_at.append(now())
        for action in self.script.pop(0):
            if isinstance(action, BaseException):
                raise action
            if action == "report":
                registry.replace_all([Endpoint("a", "10.0.0.1", 80)])
                registry.ready()
            elif action == "wait":
                await asyncio.Event().wait()


def scripted(*steps):
    return type("ScriptedDiscovery", (Scripted,), {"steps": steps})


@pytest.fixture
def discover(run_virtual, recorder, make_instance):
    """Run a scripted discovery: wait for it, stay a while, stop. Returns the table and the plugin."""

    def discover(*steps, stay: float = 10.0):
        instance = make_instance(scripted(*steps), "files")
        table = EndpointTable(now)

        async def scenario():
            task = DiscoveryTask(instance, table, recorder)
            task.start()
            try:
                await task.wait_ready(5.0)
                await asyncio.sleep(stay)
            finally:
                await task.stop()
                await task.stop()

        run_virtual(scenario())
        return table, instance.plugin

    return discover


def test_start_up_goes_on_once_the_pool_is_known(discover, recorder):
    table, plugin = discover(["report", "wait"])
    assert [each.name for each in table.view()] == ["a"]
    assert len(plugin.started_at) == 1
    assert recorder.faults == []


def test_a_discovery_that_returns_has_said_everything(discover, recorder):
    table, plugin = discover(["report"])
    assert len(table.view()) == 1
    assert len(plugin.started_at) == 1
    assert recorder.faults == []


def test_a_mistake_in_the_configuration_ends_start_up(discover, recorder):
    with pytest.raises(ConfigurationError, match="no such file"):
        discover([ConfigurationError("no such file")])
    assert recorder.faults == []


def test_returning_without_a_word_ends_start_up(discover):
    with pytest.raises(ConfigurationError, match=r"files \(test.files, tests 1.0\) ended before it reported endpoints"):
        discover([])


def test_silence_ends_start_up_in_time(discover):
    with pytest.raises(TimeoutError, match=r"^reported no endpoints within 5 s$"):
        discover(["wait"])


def test_another_failure_before_the_first_picture_is_tried_again(discover, recorder):
    table, plugin = discover([ConnectionError("refused")], [asyncio.CancelledError()], [SystemExit("rude")], ["report", "wait"])
    assert len(table.view()) == 1
    assert [later - earlier for earlier, later in zip(plugin.started_at, plugin.started_at[1:], strict=False)] == [0.5, 1.0, 2.0]
    assert [problem for *_, problem in recorder.faults] == ["refused", "cancelled itself", "rude"]


def test_after_the_first_picture_every_failure_is_survived(discover, recorder):
    table, plugin = discover(["report", ConfigurationError("file vanished")], ["report", RuntimeError("bug")], ["wait"])
    assert len(table.view()) == 1
    assert len(plugin.started_at) == 3
    assert recorder.faults == [("files", "EndpointDiscovery", "file vanished"), ("files", "EndpointDiscovery", "bug")]
