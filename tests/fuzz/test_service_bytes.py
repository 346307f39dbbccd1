"""Bytes that services around model servers send: exporters, brokers of pool data, engines' events, predictors, Kubernetes, name servers."""

from __future__ import annotations

import asyncio
import json
import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from endpick.api import Unavailable
from endpick_builtin.collection.otlp_messages import MalformedExport, pages_of, parse_export
from endpick_builtin.collection.pool_data import HttpPoolSource, at, path_of
from endpick_builtin.observers import read_load
from endpick_builtin.producers.latency_service import predictions_in
from endpick_builtin.producers.token_producer import prompts_in
from fuzz.bounds import bounded, mixed
from unit.scheduling.workbench import instance

TEXTS = st.text(max_size=4) | st.sampled_from(["\ud800", "Ready", "True", "10.0.0.1", "NaN", "1e999", "0", "8000,x,9" * 3])


def documents(*fields: str) -> st.SearchStrategy[object]:
    """JSON values whose objects have these fields, each of any type."""
    names = st.sampled_from(fields)
    return st.recursive(
        st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | TEXTS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=6),
        max_leaves=20,
    )


def written(document: object) -> bytes:
    """As JSON, with whatever JSON has no word for."""
    return json.dumps(document).encode()


OTLP = documents(
    *("resourceMetrics", "resource", "attributes", "key", "value", "stringValue", "scopeMetrics", "metrics", "name", "gauge", "sum"),
    *("histogram", "summary", "dataPoints", "asInt", "asDouble", "timeUnixNano", "count", "flags"),
)
OTLP_BYTES = mixed(
    *(b"\x0a\x20", b"\x0a\x05\x0a\x03abc", b"\x12\x0e\x12\x0c", b"\x0a\x01m", b"\x2a\x0b\x0a\x09"),
    *(b"\x21\x00\x00\x00\x00\x00\x00\xf8\x7f", b"\x31\xff\xff\xff\xff\xff\xff\xff\xff"),
)


@given(st.one_of(OTLP.map(lambda document: (written(document), True)), OTLP_BYTES.map(lambda body: (body, False))))
def test_an_export_of_metrics_is_read_or_malformed(sent):
    body, is_json = sent
    try:
        export = parse_export(body, is_json=is_json)
    except MalformedExport:
        return
    assert all(isinstance(sample.value, float) for resource in pages_of(export) for sample in resource.page.samples("m"))


@given(st.binary(max_size=40) | documents("a", "b", "0").map(written), st.lists(st.sampled_from(["a", "b", "0", "-", "~1", "99999999999"])))
def test_a_document_about_the_pool_is_read_or_unavailable(body, steps):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pool.json").write_bytes(body)
        source = instance(HttpPoolSource, path=f"{folder}/pool.json").plugin
        with suppress(Unavailable):
            document = asyncio.run(source.poll_pool())
            at(document.root, path_of("/" + "/".join(steps)))


@given(
    mixed(
        b"JSON ", b"TEXT ", b'{"named_metrics":', b"{", b"}", b'"a":', b"named_metrics.a=", b"1", b"1e999", b"nan", b"_", b",", b"[" * 3000
    )
)
def test_a_report_of_load_is_numbers_or_nothing(header):
    load = bounded(lambda sent: read_load(sent.decode("latin-1")), header)
    assert all(isinstance(value, float) for value in load.values())


ANSWERS = documents(
    "predictions", "ttft_ms", "tpot_ms", "token_ids", "features", "mm_hashes", "mm_placeholders", "image", "offset", "length"
)


@given(ANSWERS, st.integers(0, 3))
def test_predictor_and_renderer_answers_are_read(answer, count):
    with suppress(Unavailable):
        assert len(predictions_in(answer, count)) == count
    with suppress(Unavailable):
        assert all(len(prompt.token_ids) for prompt in prompts_in(answer))
