"""Every built-in scorer returns finite scores for any reported numbers."""

from __future__ import annotations

import logging
import random
from contextlib import suppress

import numpy as np
import pytest
from benchmarks.plugins import PARAMETERS, VARIANTS, plugin_types, scene
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from endpick.api import DataCollector, Endpoint, MetricsPage, PluginContext, Scope, Scorer, Unavailable
from endpick.data.table import EndpointTable, TableWriter
from endpick.host.instance import scope_of
from endpick.host.schema import own_model
from endpick.testing.bench import stub_instances
from endpick_builtin.collection.core_metrics import CORE_KEYS, CoreMetricsExtractor, CoreMetricsParameters

SIZE = 4
SILENT = logging.getLogger("tests.silent")
SILENT.disabled = True
SCORERS = [
    pytest.param(kind, parameters, id=f"{name}{number or ''}")
    for name, kind in plugin_types()
    if issubclass(kind, Scorer)
    for number, parameters in enumerate((PARAMETERS.get(name, {}), *((VARIANTS[name],) if name in VARIANTS else ())))
]
WILD = st.one_of(
    st.floats(), st.sampled_from([0.0, -0.0, 1.0, 2.0, -1.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf")])
)


def test_there_are_scorers():
    assert len(SCORERS) > 20


@pytest.mark.parametrize(("kind", "parameters"), SCORERS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(numbers=st.lists(WILD, min_size=SIZE, max_size=SIZE), rotate=st.booleans())
@example(numbers=[float("-inf"), float("nan"), float("inf"), 2.0], rotate=True)
@example(numbers=[1e308, -1e308, 5e-324, -0.0], rotate=False)
@example(numbers=[float("inf")] * 4, rotate=False)
@example(numbers=[float("nan")] * 4, rotate=False)
def test_scores_are_finite(kind, parameters, numbers, rotate):
    values = own_model(kind)(**parameters)
    subscriptions = kind.subscriptions(values)
    given_scene = scene(SIZE, subscriptions, matches=True)
    for offset, key in enumerate((*subscriptions.consumes, *subscriptions.consumes_optional)):
        column = np.roll(numbers, offset if rotate else 0)
        if key.scope is Scope.ENDPOINT and key.is_number:
            for each, value in zip(given_scene.endpoints, column, strict=True):
                given_scene.table.write(key, each, float(value))
        elif key.scope is Scope.CANDIDATE:
            # What a producer leaves for a request is its own number, not a server's; NaN is what it does not know.
            given_scene.state.put_column(key, given_scene.endpoints, np.where(np.isfinite(column), np.clip(column, -1e300, 1e300), np.nan))
    writer = TableWriter(given_scene.table, scope_of("test", subscriptions), None, lambda *_: None)
    plugin = kind("test", values, PluginContext(logger=SILENT, random=random.Random(1), columns=writer, instances=stub_instances(values)))
    scores = np.asarray(plugin.score(given_scene.request, given_scene.endpoints, given_scene.state), dtype=np.float64)
    assert scores.shape == (SIZE,)
    assert np.isfinite(scores).all(), scores


@given(usage=WILD, waiting=WILD, running=WILD)
@example(usage=float("-inf"), waiting=float("nan"), running=float("inf"))
@example(usage=2.0, waiting=-3.0, running=1e308)
def test_extracted_values_are_finite_and_in_range(usage, waiting, running):
    page = f"vllm:num_requests_waiting {waiting}\nvllm:num_requests_running {running}\nvllm:kv_cache_usage_perc {usage}\n"
    table, endpoint = EndpointTable(lambda: 1.0, CORE_KEYS), Endpoint("default/a", "10.0.0.1", 8000)
    table.upsert(endpoint)
    extractor: DataCollector = CoreMetricsExtractor("core", CoreMetricsParameters(), PluginContext())
    with suppress(Unavailable):
        extractor.collect(MetricsPage(page.encode()), table.writer(None, endpoint))
    queue, load, kv = (table.view()[key][0] for key in CORE_KEYS[:3])
    for value in (queue, load, kv):
        assert np.isnan(value) or (np.isfinite(value) and value >= 0)
    assert np.isnan(kv) or kv <= 1.0
