"""What one worker polls and the others receive."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import pytest

from endpick.api import DataKey, Endpoint
from endpick.api.keys import LORA_ADAPTERS, SERVED_MODELS, WAITING_QUEUE_SIZE, LoraAdapters, ServedModel
from endpick.data.table import EndpointTable
from endpick.fleet.columns import COLUMNS, SharedColumns
from endpick.fleet.exchange import FORMAT, Exchange, Message
from endpick.host.telemetry import NullTelemetry
from endpick.testing.bench import Clock


@dataclass
class Unresolvable:
    """As with an import for type checkers only."""

    price: Decimal  # noqa: F821


TAGS: DataKey[object] = DataKey("acme.example/tags", object)
PRICE: DataKey[Unresolvable] = DataKey("acme.example/price", Unresolvable)
KEYS = (WAITING_QUEUE_SIZE, LORA_ADAPTERS, SERVED_MODELS, TAGS, PRICE)
ADAPTERS = LoraAdapters(frozenset({"a", "b"}), frozenset({"c"}), 4)


class Worker:
    """The table of one worker, with two endpoints."""

    def __init__(self, *, sends: bool = False, host: str = "10.0.0.1") -> None:
        self.clock = Clock()
        self.table = EndpointTable(self.clock, KEYS)
        self.a, self.b = Endpoint("a", host, 80), Endpoint("b", "10.0.0.2", 80)
        self.table.replace_all([self.a, self.b])
        self.columns = SharedColumns(self.table, sends=sends)
        self.deliveries: list[None] = []
        self.table.on_delivered.append(lambda: self.deliveries.append(None))

    def polled(self, endpoint: Endpoint, **values: object) -> None:
        since = self.clock()
        keys = {key.name.replace("-", "_"): key for key in KEYS}
        for name, value in values.items():
            self.table.write(keys[name], endpoint, value)
        for told in self.table.on_polled:
            told("metrics", endpoint, frozenset(key.name for key in KEYS), since)

    def value(self, key: DataKey[object] | DataKey[float], name: str = "a") -> object:
        return self.table.cell(key.name, name)[0]


@pytest.fixture
def scraper():
    return Worker(sends=True)


@pytest.fixture
def other():
    return Worker()


def test_values_of_a_poll_arrive(scraper, other):
    scraper.polled(scraper.a, waiting_queue_size=3.0, lora_adapters=ADAPTERS)
    other.clock.now += 60.0
    other.columns.apply(scraper.columns.drain())
    assert (other.value(WAITING_QUEUE_SIZE), other.value(LORA_ADAPTERS)) == (3.0, ADAPTERS)
    assert math.isnan(other.value(WAITING_QUEUE_SIZE, "b"))
    assert other.table.oldest_write("a", [WAITING_QUEUE_SIZE.name, LORA_ADAPTERS.name]) == other.clock()
    assert len(other.deliveries) == 1
    assert scraper.columns.drain() == b""


def test_only_values_of_the_poll_are_sent(scraper, other):
    scraper.table.write(LORA_ADAPTERS, scraper.a, ADAPTERS)
    scraper.clock.now += 1.0
    scraper.polled(scraper.a, waiting_queue_size=3.0)
    other.columns.apply(scraper.columns.drain())
    assert other.value(LORA_ADAPTERS) is None


@pytest.mark.parametrize("value", [object(), {"a": object()}, (ServedModel("m"),)])
def test_a_value_that_would_not_arrive_as_it_is_stays(scraper, other, value):
    scraper.table.write(SERVED_MODELS, scraper.a, (ServedModel("m"),))
    scraper.table.write(TAGS, scraper.a, value)
    scraper.table.write(PRICE, scraper.a, Unresolvable(3))
    scraper.polled(scraper.a, waiting_queue_size=1.0)
    other.columns.apply(scraper.columns.drain())
    assert other.value(WAITING_QUEUE_SIZE) == 1.0
    assert [other.value(key) for key in (SERVED_MODELS, TAGS, PRICE)] == [None] * 3


def test_a_value_of_ones_own_that_is_newer_stays(scraper, other):
    scraper.polled(scraper.a, waiting_queue_size=3.0)
    scraper.clock.now += 0.05
    message = scraper.columns.drain()
    other.table.write(WAITING_QUEUE_SIZE, other.a, 0.0)
    other.clock.now += 0.01
    other.columns.apply(message)
    assert other.value(WAITING_QUEUE_SIZE) == 0.0
    other.clock.now += 0.05
    other.columns.apply(message)
    assert other.value(WAITING_QUEUE_SIZE) == 3.0


def test_what_arrived_is_remembered_until_the_endpoint_leaves(scraper, other):
    scraper.polled(scraper.a, waiting_queue_size=3.0)
    other.columns.apply(scraper.columns.drain())
    assert other.table.received == {("metrics", "a"): other.clock.now}
    other.table.remove("a")
    assert other.table.received == {}


def test_values_of_an_endpoint_that_moved_or_left_are_ignored(scraper):
    scraper.polled(scraper.a, waiting_queue_size=3.0)
    moved = Worker(host="10.0.0.9")
    left = Worker()
    left.table.remove("a")
    message = scraper.columns.drain()
    for worker in (moved, left):
        worker.columns.apply(message)
    assert math.isnan(moved.value(WAITING_QUEUE_SIZE))
    assert [endpoint.name for endpoint in left.table.generation.endpoints] == ["b"]


def test_an_endpoint_that_leaves_before_it_is_sent(scraper):
    scraper.polled(scraper.a, waiting_queue_size=3.0)
    scraper.table.remove("a")
    assert scraper.columns.drain() == b""


def test_the_polling_worker_receives_nothing(scraper):
    second = Worker(sends=True)
    second.polled(second.a, waiting_queue_size=9.0)
    scraper.columns.apply(second.columns.drain())
    assert math.isnan(scraper.value(WAITING_QUEUE_SIZE))


def test_columns_go_with_the_message_of_the_exchange(scraper, other):
    one, two = (Exchange(name, worker.clock, NullTelemetry(), worker.columns) for name, worker in (("one", scraper), ("two", other)))
    scraper.polled(scraper.a, waiting_queue_size=3.0)
    two.receive(one.drain())
    assert other.value(WAITING_QUEUE_SIZE) == 3.0
    two.receive(msgspec.msgpack.encode(Message(FORMAT, "three", deltas={COLUMNS: b"\xc1"})))
    assert (two.counts.applied, two.counts.unreadable) == (2, 1)
