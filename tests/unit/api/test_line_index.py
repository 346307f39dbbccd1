"""Long pages are searched by their lines' beginnings: what is found is what a search of the whole page finds."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from endpick.api import MetricsPage
from endpick.api.line_index import LONGEST_PAGE, SHORTEST_PAGE, index_lines

NAMES = ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:lora_requests_info", "vllm:cac", "up", "http_requests_total")
LINES = [
    line
    for family in range(9)
    for line in (
        f"# HELP vllm:latency_{family}_seconds How long vllm:num_requests_waiting takes.",
        f"# TYPE vllm:latency_{family}_seconds histogram",
        *(f'vllm:latency_{family}_seconds_bucket{{engine="0",model_name="m",le="{bound / 8}"}} {bound}.0' for bound in range(16)),
    )
]
WANTED = (
    'vllm:num_requests_waiting{engine="0",model_name="m"} 3.0',
    'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 2.0',
    'vllm:num_requests_running{engine="0",model_name="m"} 7.0',
    'vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters="c"} 1.7e9',
    "vllm:num_requests_waiting 1 1700000000000",
    'vllm:num_requests_waiting{a="}"} 5',
    'vllm:num_requests_waiting\t6 # {trace_id="vllm:num_requests_waiting 1"} 0.5',
    "  vllm:num_requests_running 2",
    "\tvllm:num_requests_running 2",
    "vllm:num_requests_runnin",
    "vllm:cac 1",
    "vllm:cac",
    "up 1",
    "",
    "\r",
    "vllm:num_requests_waiting 1_000",
    "vllm:num_requests_waiting NaN\r",
)


def page_of(extra: list[tuple[int, str]], last: str = "\n") -> bytes:
    lines = list(LINES)
    for place, line in extra:
        lines.insert(place % (len(lines) + 1), line)
    return ("\n".join(lines) + last).encode()


def searched(body: bytes) -> MetricsPage:
    """The page without an index."""
    page = MetricsPage(body)
    page._is_indexed = True
    return page


PAGES = st.builds(
    page_of, st.lists(st.tuples(st.integers(0, 400), st.sampled_from(WANTED)), max_size=12), st.sampled_from(["\n", "", "\nvllm:cac 7"])
)
MUTATIONS = st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 40), st.binary(max_size=40)), max_size=4)


@given(PAGES, MUTATIONS)
@example(page_of([(0, WANTED[0]), (200, WANTED[0])], ""), [])
@example(page_of([(400, WANTED[3])], ""), [])
@example(page_of([(7, WANTED[8])]), [])
@settings(max_examples=300, deadline=None)
def test_an_index_finds_what_a_search_finds(body, mutations):
    for place, removed, put in mutations:
        at = place % len(body)
        body = body[:at] + put + body[at + removed :]
    assert len(body) > SHORTEST_PAGE
    indexed, whole = MetricsPage(body), searched(body)
    for name in NAMES:
        assert repr(indexed.samples(name)) == repr(whole.samples(name))  # repr, so that NaN equals NaN


def test_a_page_of_an_engine_is_indexed():
    body = page_of([(20, WANTED[0]), (90, WANTED[1]), (150, WANTED[5])])
    index = index_lines(body)
    assert index is not None
    assert [body[at : body.find(b"\n", at)].decode() for at in index.lines_like(b"vllm:num_requests_waiting")] == [
        WANTED[0],
        WANTED[1],
        WANTED[5],
    ]
    assert [sample.value for sample in MetricsPage(body).samples("vllm:num_requests_waiting")] == [3.0, 5.0]


@pytest.mark.parametrize(
    "body",
    [
        b"up 1\n" * 10,
        b"# HELP noise " + b"x" * LONGEST_PAGE,
        b"up 1\n" * SHORTEST_PAGE,
        page_of([(3, "  vllm:num_requests_running 2")]),
        page_of([(3, "\tvllm:num_requests_running 2")]),
    ],
    ids=["short", "huge", "more lines than a page of metrics has", "blank in front", "tab in front"],
)
def test_pages_that_are_searched(body):
    assert index_lines(body) is None
