"""What the hypothesis strategies promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings

from endpick.api import KV_CACHE_USAGE, WAITING_QUEUE_SIZE, DataKey
from endpick.api.keys import LORA_ADAPTERS
from endpick.testing import strategies as st

OBJECTS = DataKey("test.example/objects", complex)
QUICK = settings(max_examples=30, deadline=None)
ANY = settings(QUICK, max_examples=2000, phases=[Phase.generate])


@given(st.endpoints(KV_CACHE_USAGE, LORA_ADAPTERS, max_size=5))
@QUICK
def test_columns_hold_plausible_values_or_nothing(endpoints):
    usage = endpoints[KV_CACHE_USAGE]
    assert 1 <= len(endpoints) <= 5
    assert ((usage >= 0) & (usage <= 1) | np.isnan(usage)).all()
    assert all(one is None or one.max_adapters >= 0 for one in endpoints.objects(LORA_ADAPTERS))


@given(st.endpoints(WAITING_QUEUE_SIZE, reported=True))
@QUICK
def test_reported_endpoints_miss_nothing(endpoints):
    assert np.isfinite(endpoints[WAITING_QUEUE_SIZE]).all()


@given(st.endpoints(WAITING_QUEUE_SIZE, reported=False))
@QUICK
def test_silent_endpoints_have_nothing(endpoints):
    assert np.isnan(endpoints[WAITING_QUEUE_SIZE]).all()


def test_missing_values_labels_and_narrowed_views_do_occur():
    some_missing = find(st.endpoints(KV_CACHE_USAGE), lambda view: np.isnan(view[KV_CACHE_USAGE]).sum() not in (0, len(view)))
    labelled = find(st.endpoints(labels={"zone": st._WORDS}), lambda view: any(endpoint.labels for endpoint in view), settings=ANY)
    narrowed = find(st.narrowed_endpoints(KV_CACHE_USAGE), lambda view: view._rows is not None and len(view) > 1, settings=ANY)

    assert len(some_missing) == 2
    assert {name for endpoint in labelled for name in endpoint.labels} == {"zone"}
    assert len(narrowed[KV_CACHE_USAGE]) == len(narrowed)


@given(st.scored_endpoints())
@QUICK
def test_scored_endpoints_are_aligned(scored):
    assert scored.scores.shape == (len(scored.endpoints),)


@given(st.requests())
@QUICK
def test_requests_render(request):
    assert all(isinstance(text, bytes) for text in request.prompt.texts)


def test_objects_of_unknown_type_need_a_strategy():
    with pytest.raises(ValueError, match=r"there is no strategy for what 'test\.example/objects' holds; give endpoints\(\) one"):
        find(st.endpoints(OBJECTS), lambda view: True)
