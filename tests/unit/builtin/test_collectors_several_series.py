"""A page with several series of one metric, from data-parallel engines, processes or models."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE, MetricsPage, Unavailable
from endpick.api.keys import CACHE_BLOCK_SIZE, CACHE_NUM_BLOCKS, LORA_ADAPTERS, LoraAdapters
from endpick_builtin.collection.engines import BUILT_IN_ENGINES, EngineConfig, parse_spec
from unit.builtin.test_collectors_core_metrics import Written, extractor

ENGINES = pytest.mark.parametrize("engine", BUILT_IN_ENGINES, ids=lambda engine: engine.name)


def line(spec: str, value: object, **labels: object) -> str:
    """A sample of a metric, with further labels."""
    metric = parse_spec(spec)
    assert metric is not None
    pairs = ",".join(f'{name}="{text}"' for name, text in {**metric.labels, **labels}.items())
    return f"{metric.name}{{{pairs}}} {value}\n"


def page_of(config: EngineConfig, engines: list[dict[str, object]], values: list[tuple[float, float, float]]) -> str:
    """Waiting, running and usage of each engine."""
    specs = (config.queued_requests_spec, config.running_requests_spec, config.kv_usage_spec)
    samples = zip(engines, values, strict=True)
    return "".join(line(spec, value, **labels) for labels, each in samples for spec, value in zip(specs, each, strict=True) if spec)


def read(page: str, engine: str = "vllm", name: str = "default/a", **parameters) -> dict[str, object]:
    writer = Written({"llm-d.ai/engine-type": engine}, name)
    extractor(**parameters).collect(MetricsPage(page.encode()), writer)
    return writer.values


@ENGINES
@pytest.mark.parametrize("label", ["engine", "dp_rank", "pid", "model_name"])
def test_counts_are_summed_and_shares_averaged(engine, label):
    page = page_of(engine, [{label: 0}, {label: 1}], [(3, 5, 0.25), (4, 0, 0.75)])

    values = read(page, engine.name)

    assert values[WAITING_QUEUE_SIZE.name] == 7
    assert values[RUNNING_REQUESTS_SIZE.name] == 5
    assert values.get(KV_CACHE_USAGE.name) == (0.5 if engine.kv_usage_spec else None)


@ENGINES
def test_the_rank_of_an_endpoint_chooses_its_series(engine):
    page = page_of(engine, [{"dp_rank": 0}, {"dp_rank": 1}], [(3, 5, 0.25), (4, 0, 0.75)])

    assert read(page, engine.name, "default/pod-rank-1")[WAITING_QUEUE_SIZE.name] == 4
    assert read(page, engine.name, "default/pod-rank-7")[WAITING_QUEUE_SIZE.name] == 7  # no such rank: all of them


def test_a_page_of_one_engine_is_read_whatever_its_rank():
    page = page_of(BUILT_IN_ENGINES[0], [{"engine": 0}], [(3, 5, 0.25)])

    assert read(page, name="default/pod-rank-2")[WAITING_QUEUE_SIZE.name] == 3


def test_ranks_that_share_requests_count_once():
    engines = [{"dp_rank": dp, "tp_rank": tp} for dp in (0, 1) for tp in (0, 1, 2)]
    page = page_of(BUILT_IN_ENGINES[1], engines, [(3, 5, 0.2)] * 3 + [(4, 1, 0.4)] * 3)

    values = read(page, "sglang")

    assert (values[WAITING_QUEUE_SIZE.name], values[RUNNING_REQUESTS_SIZE.name]) == (7, 6)
    assert values[KV_CACHE_USAGE.name] == pytest.approx(0.3)


def test_cache_blocks_are_summed_and_the_block_size_kept():
    layout = "".join(line("vllm:cache_config_info", 1, engine=n, block_size=16, num_gpu_blocks=1000 + n) for n in range(2))

    values = read(page_of(BUILT_IN_ENGINES[0], [{}], [(0, 0, 0)]) + layout)

    assert (values[CACHE_BLOCK_SIZE.name], values[CACHE_NUM_BLOCKS.name]) == (16, 2001)


def test_adapters_of_all_engines_are_united():
    def adapters(value: int, engine: int, running: str, waiting: str, limit: int) -> str:
        labels = {"running_lora_adapters": running, "waiting_lora_adapters": waiting, "max_lora": limit}
        return line("vllm:lora_requests_info", value, engine=engine, **labels)

    page = adapters(1, 0, "old", "", 9) + adapters(2, 0, "a,b", "c", 2) + adapters(1, 1, "b,d", "", 4)

    values = read(page_of(BUILT_IN_ENGINES[0], [{}], [(0, 0, 0)]) + page)

    assert values[LORA_ADAPTERS.name] == LoraAdapters(frozenset("abd"), frozenset("c"), 4)


@pytest.mark.parametrize(("aggregation", "number"), [(None, 9.0), ("sum", 9.0), ("mean", 3.0), ("max", 5.0), ("min", 1.0)])
def test_a_custom_metric_states_its_aggregation(aggregation, number):
    custom = {"attributeKey": "heat", "metricSpec": "heat"} | ({"aggregation": aggregation} if aggregation else {})
    page = 'heat{gpu="0"} 1\nheat{gpu="1"} 3\nheat{gpu="2"} 5\nheat{gpu="3"} NaN\n'

    assert read(page, "mine", engineConfigs=[{"name": "mine", "customMetrics": [custom]}]) == {"heat": number}


def test_an_optional_custom_metric_may_be_missing():
    custom = {"attributeKey": "heat", "metricSpec": "heat", "optional": True}

    assert read("", "mine", engineConfigs=[{"name": "mine", "customMetrics": [custom]}]) == {}


COUNTS = st.one_of(st.integers(0, 10**6).map(float), st.sampled_from([math.nan, math.inf, -math.inf, -5.0]))


@given(st.lists(st.tuples(COUNTS, COUNTS, st.floats(0, 1)), min_size=1, max_size=40), st.randoms())
def test_order_and_repetition_of_series_change_nothing(values, random):
    lines = page_of(BUILT_IN_ENGINES[0], [{"engine": number} for number in range(len(values))], values).splitlines(keepends=True)
    shuffled = lines + random.sample(lines, len(lines) // 2)
    random.shuffle(shuffled)
    known = [[value for value in each if value >= 0 and math.isfinite(value)] for each in zip(*values, strict=True)]
    writer = Written()

    try:
        extractor().collect(MetricsPage("".join(shuffled).encode()), writer)
    except Unavailable:
        assert not all(known)

    waiting, running, usage = known
    wanted = {WAITING_QUEUE_SIZE.name: sum(waiting) if waiting else None, RUNNING_REQUESTS_SIZE.name: sum(running) if running else None}
    assert {name: writer.values.get(name) for name in wanted} == wanted
    assert writer.values[KV_CACHE_USAGE.name] == pytest.approx(sum(usage) / len(usage))


def test_a_page_of_another_engine_names_it():
    page = page_of(BUILT_IN_ENGINES[1], [{}], [(0, 0, 0)])

    with pytest.raises(Unavailable) as failure:
        read(page)

    advice = "it looks like a page of sglang: label the Pod `llm-d.ai/engine-type: sglang`, or set defaultEngine"
    assert str(failure.value).endswith(f"vllm:kv_cache_usage_perc; {advice}")


def test_a_thousand_series_are_read():
    engines = [{"engine": number, **{f"label{n}": n for n in range(20)}} for number in range(1000)]

    assert read(page_of(BUILT_IN_ENGINES[0], engines, [(1, 2, 0.5)] * 1000))[WAITING_QUEUE_SIZE.name] == 1000
