"""The page of metrics is the one that `prometheus_client` would write, and writing it holds up nothing else."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Metric, generate_latest

from endpick.api.fast_metrics import Distributions
from endpick.observability.text_page import CONTENT_TYPE, page_of

TYPES = ("counter", "gauge", "summary", "histogram", "gaugehistogram", "unknown", "info", "stateset")
NAMES = st.from_regex(r"[a-z_:][a-z0-9_:.é]{0,5}", fullmatch=True)
LABELS = st.dictionaries(st.from_regex(r"[a-z][a-z0-9_.-]{0,3}", fullmatch=True), st.text('ab"\\\n{},é', max_size=4), max_size=3)
SAMPLES = st.tuples(
    st.sampled_from(["", "_total", "_created", "_bucket", "_gsum", "_gcount", "_info"]), LABELS, st.floats() | st.integers()
)


class Family:
    """A collector of one family."""

    def __init__(self, family):
        self.family = family

    def collect(self):
        yield self.family


@given(st.sampled_from(TYPES), NAMES, st.text('ab"\\\n#é', max_size=9), st.lists(SAMPLES, max_size=8))
def test_any_family_is_written_as_the_library_writes_it(type_, name, documentation, samples):
    family = Metric("fine", documentation, type_)
    family.name = name  # which the library checks, or not, as the environment says
    for suffix, labels, value in samples:
        family.add_sample(name + suffix, labels, value)

    assert asyncio.run(page_of(Family(family))) == generate_latest(Family(family))


def test_the_content_type_is_the_librarys():
    from prometheus_client import CONTENT_TYPE_LATEST

    assert CONTENT_TYPE == CONTENT_TYPE_LATEST


@pytest.mark.asyncio
async def test_a_page_written_in_pieces_is_the_page_the_library_would_write_at_once():
    registry = CollectorRegistry()
    many = Distributions("size_bytes", "How big,\nand how \\ often.", ("who",), (1, 2, 5), registry)
    Gauge("empty", "Nothing yet.", ("who",), registry=registry)
    Counter("seen", "Seen, with the time of creation.", ("who",), registry=registry).labels("x").inc()
    for number in range(301):
        many.labels(f'"{number}"').observe(number)
    for number in range(150):
        Counter(f"things_{number}", "Things.", registry=registry)

    lines = generate_latest(registry).splitlines(keepends=True)
    about = [line for line in lines if line.startswith(b"#")]
    assert len(about) > len(set(about)), "a family in several parts, as the library writes it"
    assert await page_of(registry) == b"".join(line for at, line in enumerate(lines) if not line.startswith(b"#") or line not in lines[:at])


@pytest.mark.asyncio
async def test_a_large_page_lets_others_have_their_turn():
    registry = CollectorRegistry()
    many = Distributions("size_bytes", "How big.", ("who",), range(20), registry)
    for number in range(500):
        many.labels(str(number)).observe(number)
    turns = 0

    async def neighbour() -> None:
        nonlocal turns
        while not page.done():
            turns += 1
            await asyncio.sleep(0)

    page = asyncio.ensure_future(page_of(registry))
    await neighbour()
    samples = (await page).count(b"size_bytes_")
    assert samples == 500 * 23
    assert turns >= samples / 200
