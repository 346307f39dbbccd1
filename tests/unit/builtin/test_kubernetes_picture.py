"""What the collections of an API server come to together: told with turns for everything else, however much there is and however often."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Iterable
from contextlib import asynccontextmanager
from random import Random

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge

from endpick.api import Endpoint, Limits, PluginContext
from endpick.data.table import EndpointTable
from endpick_builtin.kubernetes import election, pages
from endpick_builtin.kubernetes.client import Event
from endpick_builtin.kubernetes.election import Election, Timing
from endpick_builtin.kubernetes.following import FOLLOWING_LIMITS, Collection, Follower, Following
from endpick_builtin.kubernetes.leases import Attempt, read_lease
from endpick_builtin.kubernetes.objects import Pod, Pool
from endpick_builtin.kubernetes.parameters import KubernetesDiscoveryParameters
from endpick_builtin.kubernetes.patience import Patience
from endpick_builtin.kubernetes.picture import PoolPicture
from unit.builtin.kv_publisher import until

pytestmark = pytest.mark.asyncio


class NoServer:
    """An API server that never answers."""

    async def page(self, *_: object) -> None:
        await asyncio.Event().wait()


def shared() -> Following:
    context = PluginContext(clock=time.monotonic, registry=CollectorRegistry(), columns=None)
    limits = Limits(context, FOLLOWING_LIMITS)
    steps = Counter("steps", "Of the test.", ("collection", "outcome"), registry=None)
    return Following(NoServer(), None, Random(1), logging.getLogger("tests.picture"), limits, steps, 20.0, 1.0, Patience())


def pods(count: int, host: int = 1) -> dict[str, Pod]:
    named = ((f"p{number}", f"10.{host}.{number // 250}.{number % 250}") for number in range(count))
    return {name: Pod(name, address, (("app", "vllm"),), None) for name, address in named}


@asynccontextmanager
async def shown(table: EndpointTable):
    parameters = KubernetesDiscoveryParameters(endpointSelector="app=vllm", endpointTargetPorts=[8000])
    gauge = Gauge("synced", "Of the test.", ("collection",), registry=None)
    made = PoolPicture(parameters, "default", shared(), table, gauge, lambda: None)
    following = asyncio.create_task(made.follow())
    await until(lambda: made._pods is not None)
    try:
        yield made
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def become(made: PoolPicture, objects: dict[str, Pod]) -> None:
    made._pods._become(objects, installed=True)


async def test_endpoints_of_many_pods_are_made_with_turns_for_everything_else(monkeypatch):
    monkeypatch.setattr(pages, "TURN_SECONDS", 0.0)
    table, turns = EndpointTable(time.monotonic), 0
    async with shown(table) as made:
        become(made, pods(300))
        while len(table.view()) < 300:
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 300


class Registry:
    """A table that remembers what it was told last."""

    def __init__(self) -> None:
        self.table = EndpointTable(time.monotonic)
        self.told: list[Endpoint] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self.table, name)

    def replace_all(self, endpoints: Iterable[Endpoint]) -> None:
        self.told = list(endpoints)
        self.table.replace_all(self.told)


async def test_of_pods_that_stay_as_they_are_nothing_is_made_anew():
    table = Registry()
    async with shown(table) as made:
        become(made, pods(100))
        await until(lambda: len(table.view()) == 100)
        before = {endpoint.name: endpoint for endpoint in table.view()}
        become(made, {**pods(100), "p3": Pod("p3", "10.9.9.9", (), None), "new": Pod("new", "10.9.9.8", (), None)})
        await until(lambda: len(table.view()) == 101)
        assert sum(before.get(each.name) is each for each in table.told) == 99


async def test_pods_whose_selector_is_another_by_now_are_not_told(monkeypatch):
    monkeypatch.setattr(pages, "TURN_SECONDS", 0.0)
    table = EndpointTable(time.monotonic)
    async with shown(table) as made:
        become(made, pods(50))
        await asyncio.sleep(0)
        made._unselect()
        made._select("app=other")
        become(made, pods(2, host=2))
        await until(lambda: len(table.view()) == 2)
        assert {endpoint.host for endpoint in table.view()} == {"10.2.0.0", "10.2.0.1"}


async def test_rules_that_change_all_the_time_do_not_keep_the_pool_from_being_complete():
    table, complete = EndpointTable(time.monotonic), asyncio.Event()
    parameters = KubernetesDiscoveryParameters(poolName="pool", poolNamespace="default")
    gauge = Gauge("synced", "Of the test.", ("collection",), registry=None)
    made = PoolPicture(parameters, "default", shared(), table, gauge, complete.set)
    following = asyncio.create_task(made.follow())

    async def change() -> None:
        for number in itertools.count():
            made._objectives[0]._become({"o": number}, installed=True)
            await asyncio.sleep(0)

    made._pools._become({"pool": Pool((("app", "vllm"),), (8000,))}, installed=True)
    for one in (*made._objectives, *made._rewrites):
        one._become({}, installed=True)
    changing = asyncio.create_task(change())
    become(made, pods(3))
    async with asyncio.timeout(10):
        await complete.wait()
    assert len(table.view()) == 3
    for task in (changing, following):
        task.cancel()
    await asyncio.gather(changing, following, return_exceptions=True)


async def test_of_one_object_that_is_asked_for_others_are_not_kept():
    follower = Follower(Collection("leases", "/leases", read_lease, only="mine"), shared(), lambda: None)
    items = [{"metadata": {"name": name, "resourceVersion": "7"}, "spec": {"holderIdentity": "x" * 10_000}} for name in ("mine", "other")]
    follower._apply([Event("ADDED", item) for item in items])
    assert list(follower.objects) == ["mine"]
    assert len(follower.objects["mine"].holder) == 1024


async def test_an_object_whose_name_is_longer_than_names_are_does_not_count():
    follower = Follower(Collection("pods", "/pods", lambda item: item), shared(), lambda: None)
    follower._apply([Event("ADDED", {"metadata": {"name": name}}) for name in ("a" * 253, "b" * 254, "c")])
    assert list(follower.objects) == ["a" * 253, "c"]


async def test_a_lease_that_changes_all_the_time_is_asked_for_about_as_often_as_one_that_does_not(monkeypatch):
    attempts: list[float] = []
    now = asyncio.get_running_loop().time

    async def attempt(self: Election) -> Attempt:
        attempts.append(now())
        self._wake.set()  # by what a watch has brought meanwhile
        return Attempt.HELD

    async def nothing(self: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Election, "_attempt", attempt)
    monkeypatch.setattr(Follower, "run", nothing)
    gauge, counter = Gauge("leads", "Of the test.", registry=None), Counter("tries", "Of the test.", ("outcome",), registry=None)
    timing = Timing(15, 10.0, 0.2)
    elected = Election("default", "pool", {}, timing, shared(), gauge, counter, lambda: None)
    running = asyncio.create_task(elected.run())
    per_pause = election._MOST_HASTE + 1
    await until(lambda: len(attempts) >= 3 * per_pause)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert attempts[3 * per_pause - 1] - attempts[0] >= 2 * 0.2 * 0.8
