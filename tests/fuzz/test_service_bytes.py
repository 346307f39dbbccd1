"""Bytes that services around model servers send: exporters, brokers of pool data, engines' events, predictors, Kubernetes, name servers."""

from __future__ import annotations

import asyncio
import json
import math
import tempfile
from contextlib import suppress
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import Unavailable
from endpick_builtin.collection.answers import read_load
from endpick_builtin.collection.otlp_messages import MAX_POINTS, MalformedExport, answer_of, read_json, read_protobuf
from endpick_builtin.collection.pool_data import HttpPoolSource, at, path_of
from endpick_builtin.discovery.dns_messages import MessageError, RecordType, question, reading
from endpick_builtin.producers.latency_service import predictions_in
from endpick_builtin.producers.precise.kv_events import UnreadableError, read_batch
from endpick_builtin.producers.render import prompts_in
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


@given(st.one_of(OTLP.map(lambda document: (read_json, written(document))), OTLP_BYTES.map(lambda body: (read_protobuf, body))))
def test_an_export_of_metrics_is_read_or_malformed(sent):
    read, body = sent
    try:
        export = bounded(read, body, calls=20_000)
    except MalformedExport:
        return
    assert sum(resource.points for resource in export.resources) <= MAX_POINTS
    assert all(isinstance(sample.value, float) for resource in export.resources for sample in resource.page.samples("m"))
    for as_json in (True, False):
        assert isinstance(answer_of(export.dropped, "left out", as_json=as_json), bytes)


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


EVENTS = documents("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_name", "extra_keys", "group_idx", "medium")


@given(
    st.one_of(
        st.binary(max_size=60),
        st.tuples(
            st.floats(),
            st.lists(EVENTS | st.lists(st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", [1], None]) | EVENTS)),
        ).map(lambda batch: msgspec.msgpack.encode([batch[0], shortened(batch[1])])),
    )
)
def test_events_of_a_cache_are_read_or_passed_over(frame):
    with suppress(*UNUSABLE):
        batch = bounded(lambda sent: read_batch(msgspec.msgpack.Decoder().decode(sent)), frame)
        assert batch.garbage + batch.unknown + len(batch.events) >= 0
        assert not math.isnan(batch.time)


UNUSABLE = (UnreadableError, msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the intake of events takes for garbage."""


def shortened(value: object) -> object:
    """What MessagePack has room for."""
    match value:
        case dict():
            return {shortened(key): shortened(each) for key, each in value.items()}
        case list():
            return [shortened(each) for each in value]
        case bool() | None:
            return value
        case int():
            return value % 2**64
        case str():
            return value.encode("utf-8", "replace").decode()
        case _:
            return value


ANSWERS = documents(
    "predictions", "ttft_ms", "tpot_ms", "token_ids", "features", "mm_hashes", "mm_placeholders", "image", "offset", "length"
)


@given(ANSWERS, st.integers(0, 3))
def test_answers_of_a_predictor_and_a_renderer_are_read_or_unavailable(answer, count):
    with suppress(Unavailable):
        assert len(predictions_in(answer, count)) == count
    with suppress(Unavailable):
        assert all(len(prompt.token_ids) for prompt in prompts_in(answer))


ASKED = question(7, "pool.example", RecordType.SRV)


@given(
    mixed(
        b"\x00\x07\x81\x80\x00\x01\x00\x02\x00\x00\x00\x00",
        ASKED[12:],
        b"\xc0\x0c",
        b"\xc0\x00",
        b"\x00\x21\x00\x01",
        b"\x00\x00\x00\x3c\x00\x06",
        b"\x3f" + b"a" * 63,
    )
)
def test_an_answer_of_a_name_server_is_read_or_refused(message):
    with suppress(MessageError):
        bounded(lambda sent: list(reading(sent, ASKED)), message)
