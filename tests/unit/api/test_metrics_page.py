"""Looking up samples on a metrics page, compared with prometheus_client's parser, and on pages it would refuse."""

from __future__ import annotations

import math
import tracemalloc
from collections import defaultdict

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from endpick.api import MetricsPage

NAMES = ("vllm:num_requests_running", "vllm:num_requests_running_total", "num_requests_running", "up", "vllm:lora_requests_info")
VALUES = st.one_of(
    st.floats().map(repr), st.integers(-(10**12), 10**12).map(str), st.sampled_from(["NaN", "+Inf", "-Inf", "1e5", "1.5E-3", "+7"])
)
LABELS = st.dictionaries(
    st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,6}", fullmatch=True).filter(lambda name: not name.startswith("__")),
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=12),
        st.sampled_from(['quote"d', "back\\slash", "new\nline", "br{a}ce", "co,mma", "e=q", "up 1", " # ", "", "\\n"]),
    ),
    max_size=4,
)


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@st.composite
def sample_lines(draw) -> str:
    name, labels = draw(st.sampled_from(NAMES)), draw(LABELS)
    blank = draw(st.sampled_from([" ", "  ", "\t"]))
    shown = ",".join(f'{label}="{escaped(value)}"' for label, value in labels.items())
    comma = "," if shown and draw(st.booleans()) else ""
    braces = f"{{{shown}{comma}}}" if labels or draw(st.booleans()) else ""
    timestamp = draw(st.one_of(st.just(""), st.integers(0, 2**41).map(lambda ms: f" {ms}")))
    return f"{draw(st.sampled_from(['', ' ', '	']))}{name}{braces}{blank}{draw(VALUES)}{timestamp}"


COMMENTS = st.sampled_from(
    [
        "# HELP up Up means up.",
        "# TYPE up gauge",
        "# up 1",
        "#",
        "",
        "# HELP vllm:num_requests_running up 3",
        "# TYPE vllm:num_requests_running gauge",
    ]
)
PAGES = st.builds(
    lambda lines, newline, last: newline.join(lines) + last,
    st.lists(st.one_of(sample_lines(), COMMENTS), max_size=20),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
    st.sampled_from(["", "\n"]),
)


def expected(text: str) -> dict[str, list[tuple[dict[str, str], float, float | None]]]:
    """What prometheus_client reads, by name. It renames counters, so no page here declares one."""
    found = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name].append((dict(sample.labels), float(sample.value), sample.timestamp))
    return found


@given(PAGES)
@example('up{a="x\\\\"} 1')
@example('up{a="}"} 1\nup {} 2')
@settings(max_examples=60, deadline=None)
def test_samples_are_those_prometheus_client_reads(text):
    page, wanted = MetricsPage(text.encode()), expected(text)
    for name in NAMES:
        read = [(dict(labels), value, at) for labels, value, at in page.samples(name)]
        assert repr(read) == repr(wanted[name])  # repr, so that NaN equals NaN


@given(st.binary(max_size=400), st.sampled_from(["", "a", "up", "é"]))
@settings(max_examples=60, deadline=None)
def test_no_bytes_whatever_raise(body, name):
    for sample in MetricsPage(body).samples(name):
        assert isinstance(sample.value, float)


@given(st.lists(st.sampled_from(["up", "{", "}", '"', "\\", 'a="b"', ",", " ", "1", "\n", "=", "# "]), max_size=25))
@settings(max_examples=60, deadline=None)
def test_almost_right_lines_raise_nothing(pieces):
    for sample in MetricsPage("".join(pieces).encode()).samples("up"):
        assert isinstance(sample.value, float)


@pytest.mark.parametrize(
    "line",
    [
        "up",
        "up ",
        "up one",
        "up 1_000",
        "up 1 2 3",
        "up 1 soon",
        "up{",
        'up{a="b"',
        'up{a="b} 1',
        "up{a=b} 1",
        'up{a="b"c="d"} 1',
        'up{a="b" 1',
        'up{a="b",a="c"} 1',
        'up{1a="b"} 1',
        'up{a="b"}',
        "<html><body>up 1</body></html>",
        "# up 1",
        "upper 1",
        "sign_up 1",
        "up_total 1",
    ],
)
def test_a_line_that_makes_no_sense_is_passed_over(line):
    page = MetricsPage(f"{line}\nup 7\n{line}".encode())
    assert [sample.value for sample in page.samples("up")] == [7.0]


def test_samples_of_one_metric_may_be_anywhere_on_the_page():
    page = MetricsPage(b"up 1\nother 5\nup 2\n# TYPE up gauge\n\nother 6\n  up 3")
    assert [sample.value for sample in page.samples("up")] == [1, 2, 3]


def test_an_exemplar_is_no_timestamp():
    page = MetricsPage(b'requests_total{code="200"} 17 # {trace_id="up 9"} 0.67 1520879607.789\n')
    assert list(page.samples("requests_total")) == [({"code": "200"}, 17.0, None)]


def test_invalid_utf8_is_replaced_in_labels():
    page = MetricsPage(b'\xff\xfe garbage \x00\nup{model="caf\xe9"} 2\n\xff 3\n')
    assert list(page.samples("up")) == [({"model": "caf\ufffd"}, 2.0, None)]


def test_extreme_numbers():
    page = MetricsPage(b"up NaN\nup +Inf\nup -Inf\nup 1e309\nup 4.9e-324\nup 0x10\n")
    nan, *rest = [sample.value for sample in page.samples("up")]
    assert math.isnan(nan)
    assert rest == [math.inf, -math.inf, math.inf, 5e-324]


def test_newest_sample_is_the_latest_by_timestamp():
    page = MetricsPage(b'm{l="1"} 1 1000\nm{l="2"} 2 2000\nn 5 3000\nn 6 1000\np 1\np 2\nq 1\nq 2 5\n')
    assert page.newest("m").value == 2.0
    assert page.newest("m", {"l": "1"}).value == 1.0
    assert page.newest("m", {"l": "3"}) is None
    assert page.newest("n") == ({}, 5.0, 3.0)
    assert page.newest("p").value == 1.0
    assert page.newest("q").value == 2.0
    assert page.newest("unknown") is None


def test_long_labels_are_read_once_for_all_scrapes():
    line = "vllm:cache_config_info{" + ",".join(f'setting_{number}="None"' for number in range(60)) + "} 1.0\n"
    assert 1000 < len(line) < 2000
    first, second = (MetricsPage((line + f"up {moment}\n").encode()).newest("vllm:cache_config_info") for moment in range(2))
    assert len(first.labels) == 60
    assert first.labels is second.labels


def test_a_huge_page_is_searched_without_being_copied():
    body = b"# HELP noise " + b"x" * 80 + b"\n"
    page = MetricsPage(body * 80_000 + b"up 1\n")
    tracemalloc.start()
    try:
        assert page.newest("up").value == 1.0
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
