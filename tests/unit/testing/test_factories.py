"""Made-up pools, requests and payloads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal

import numpy as np
import pytest

from endpick.api import KV_CACHE_USAGE, WAITING_QUEUE_SIZE, DataKey, MetricsPage, Scope
from endpick.api.keys import LORA_ADAPTERS
from endpick.testing import make_pool
from endpick.testing.factories import BUILT_IN_KEYS, garbage_of, make_endpoint, make_request, unprotected, value_of, varied_requests

PRICE = DataKey("test.example/price", float, Scope.POOL)


@dataclass(frozen=True)
class Reading:
    """A payload as third parties define them."""

    grams: float
    region: str
    parts: list[int] | None
    tags: Mapping[str, str]
    scope: Scope
    unit: Literal["g", "kg"]


class Opaque:
    """Cannot be made without knowing more."""

    def __init__(self, connection: object) -> None:
        self.connection = connection


def test_a_pool_has_the_columns_and_labels_it_was_given():
    view = make_pool({KV_CACHE_USAGE: [0.5, None]}, labels=[{"zone": "a"}], pool={PRICE: 3.5}, clock=lambda: 7.0).view()

    np.testing.assert_array_equal(view[KV_CACHE_USAGE], [0.5, np.nan])
    np.testing.assert_array_equal(view.age(KV_CACHE_USAGE), [0.0, np.inf])
    np.testing.assert_array_equal(view[WAITING_QUEUE_SIZE], [np.nan, np.nan])
    assert view.pool(PRICE) == 3.5
    assert [(endpoint.name, endpoint.address, dict(endpoint.labels)) for endpoint in view] == [
        ("default/e0", "10.0.0.1:8000", {"zone": "a"}),
        ("default/e1", "10.0.0.2:8000", {}),
    ]


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match=r"columns have different lengths: \[1, 2\]"):
        make_pool({KV_CACHE_USAGE: [0.5], WAITING_QUEUE_SIZE: [1, 2]})


def test_ten_thousand_endpoints_have_addresses_of_their_own():
    addresses = {make_endpoint(number).address for number in range(10_000)}

    assert len(addresses) == 10_000


def test_unprotected_arrays_are_copies():
    table = make_pool({WAITING_QUEUE_SIZE: [1.0]})

    unprotected(table.generation).columns[WAITING_QUEUE_SIZE.name].values[0] = 9.0

    assert table.view()[WAITING_QUEUE_SIZE].tolist() == [1.0]


def test_varied_requests_differ_in_what_plugins_look_at():
    requests = varied_requests()

    assert {len(request.prompt.texts) for request in requests} == {0, 1, 2}
    assert {request.priority for request in requests} == {-1, 0, 9}
    assert {bool(request.model) for request in requests} == {True, False}
    assert len({request.id for request in requests}) > 2


def test_requests_measure_their_prompt():
    assert make_request(("four", "eight888")).size_bytes == 12


@pytest.mark.parametrize("key", BUILT_IN_KEYS, ids=lambda key: key.name)
def test_there_is_a_value_for_every_key_of_our_own(key):
    value = value_of(key, Random(1), {})

    assert isinstance(value, key.type)
    assert repr(value) == repr(value_of(key, Random(1), {})), "endpoints and arrays do not compare by value"


def test_samples_precede_generated_values():
    samples = {KV_CACHE_USAGE: (0.125,)}

    assert value_of(KV_CACHE_USAGE, Random(1), samples) == 0.125
    assert value_of(KV_CACHE_USAGE.from_producer("mine"), Random(1), samples) == 0.125


def test_objects_that_cannot_be_made_are_missing():
    assert value_of(DataKey("test.example/opaque", Opaque), Random(1), {}) is None
    assert value_of(LORA_ADAPTERS, Random(1), {}) is not None


def test_nonsense_is_of_the_right_type():
    assert all(isinstance(page, MetricsPage) for page in garbage_of(MetricsPage))
    assert len(garbage_of(MetricsPage)) > 3
    assert garbage_of(dict) == ({},)
    assert garbage_of(Opaque) == ()


def test_dataclasses_are_filled_with_nonsense_field_by_field():
    readings = garbage_of(Reading)

    assert all(isinstance(reading, Reading) for reading in readings)
    assert any(np.isnan(reading.grams) for reading in readings)
    assert {reading.parts is None for reading in readings} == {True, False}
    assert {reading.unit for reading in readings} == {"g", "kg"}
    assert {reading.scope for reading in readings} == set(Scope)
    assert readings[0].tags == {}
