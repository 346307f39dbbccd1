"""Specs that name a series of a metrics page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick_builtin.collection.engines import MetricSpec, parse_spec


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("", None),
        ("  ", None),
        ("my_metric", MetricSpec("my_metric")),
        ("vllm:num_requests_waiting", MetricSpec("vllm:num_requests_waiting")),
        ("my_metric{label1=value1}", MetricSpec("my_metric", {"label1": "value1"})),
        ('my_metric{label1="value1"}', MetricSpec("my_metric", {"label1": "value1"})),
        ("my_metric{label1='value1'}", MetricSpec("my_metric", {"label1": "value1"})),
        ("my_metric{label1=value1,label2=value2}", MetricSpec("my_metric", {"label1": "value1", "label2": "value2"})),
        ('  my_metric  {  label1  =  value1  ,  label2  =  "a, b}"  }  ', MetricSpec("my_metric", {"label1": "value1", "label2": "a, b}"})),
        ("my_metric{label1=value1,}", MetricSpec("my_metric", {"label1": "value1"})),
        ("my_metric{}", MetricSpec("my_metric")),
        ("my_metric{label=meta-llama/Llama-3.1-8B}", MetricSpec("my_metric", {"label": "meta-llama/Llama-3.1-8B"})),
    ],
)
def test_a_spec_is_a_name_and_labels(text, spec):
    assert parse_spec(text) == spec


@pytest.mark.parametrize(
    "text",
    [
        "my_metric{label1=value1",
        "my_metriclabel1=value1}",
        "my_metric{label1}",
        "my_metric{=value1}",
        "my_metric{label1=}",
        "my_metric{  =  }",
        "my_metric{label1=value1}extra",
        "{label=val}",
        "my_metric{a=b c=d}",
        "my_metric{a!=b}",
        "my_metric{a=~b}",
        "my metric",
        "1metric",
        "sum(my_metric)",
        'my_metric{a="b}',
    ],
)
def test_what_is_no_spec_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"write `name` or `name\{label=value\}`"):
        parse_spec(text)


NAMES = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,8}", fullmatch=True)
LABELS = st.dictionaries(st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,5}", fullmatch=True), st.text("abc ,{}='é", min_size=1), max_size=4)


@given(NAMES, LABELS)
def test_a_spec_reads_what_it_writes(name, labels):
    spec = MetricSpec(name, labels)
    assert parse_spec(str(spec)) == spec
