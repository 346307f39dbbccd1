"""The page of metrics is the one that `prometheus_client` would write, and writing it holds up nothing else."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.metrics_core import GaugeHistogramMetricFamily
from prometheus_client.registry import Collector

from endpick.api.fast_metrics import Distributions
from endpick.serve import text_page
from endpick.serve.text_page import page_of


class GaugeHistograms(Collector):
    """Many of them, whose sums and counts are written behind their buckets."""

    def __init__(self, count: int) -> None:
        self._count = count

    def collect(self):
        family = GaugeHistogramMetricFamily("ages", "How old.", labels=["who"])
        for number in range(self._count):
            family.add_metric([f"{number}"], [("1.0", number), ("+Inf", 2 * number)], 3 * number)
        yield family


@pytest.mark.asyncio
@pytest.mark.parametrize("collector", [GaugeHistograms(20_000), "created"])
async def test_what_is_written_behind_its_family_is_written_some_in_each_turn(collector, monkeypatch):
    registry, written, most = CollectorRegistry(), 0, 0
    if collector == "created":
        kinds = Counter("kinds", "Of things.", ("kind",), registry=registry)
        for number in range(20_000):
            kinds.labels(f"{number}").inc()
    else:
        registry.register(collector)
    at_once = text_page._written

    def counted(family):
        nonlocal written
        written += len(family.samples)
        return at_once(family)

    monkeypatch.setattr(text_page, "_written", counted)
    page = asyncio.ensure_future(page_of(registry))
    while not page.done():
        before = written
        await asyncio.sleep(0)
        most = max(most, written - before)
    lines = [line for line in (await page).splitlines() if not line.startswith(b"#")]
    assert len(lines) == written >= 40_000
    assert most <= 220


@pytest.mark.asyncio
async def test_a_page_written_in_pieces_is_the_page_the_library_would_write_at_once():
    registry = CollectorRegistry()
    many = Distributions("size_bytes", "How big,\nand how \\ often.", ("who",), (1, 2, 5), registry)
    Gauge("empty", "Nothing yet.", ("who",), registry=registry)
    Counter("seen", "Seen, with the time of creation.", ("who",), registry=registry).labels("x").inc()
    kinds = Counter("kinds", "Of things, each with its time.", ("kind",), registry=registry)
    for number in range(301):
        many.labels(f'"{number}"').observe(number)
        kinds.labels(f"{number}").inc(number)
    registry.register(GaugeHistograms(250))
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


@pytest.mark.asyncio
async def test_short_families_share_a_turn():
    registry = CollectorRegistry()
    for number in range(100):
        Gauge(f"things_{number}", "How many.", registry=registry).set(1)
    turns = 0
    page = asyncio.ensure_future(page_of(registry))
    while not page.done():
        turns += 1
        await asyncio.sleep(0)
    assert (await page).count(b" 1.0\n") == 100
    assert 5 < turns < 25


@pytest.mark.asyncio
async def test_a_label_that_cannot_be_encoded_leaves_the_rest_of_the_page():
    registry = CollectorRegistry()
    seen = Gauge("seen", "Seen.", ("who",), registry=registry)
    for name in ("\ud800", "\ud801", "plain"):
        seen.labels(name).set(1)
    Gauge("other", "Other.", registry=registry).set(2)
    page = (await page_of(registry)).decode()
    for line in (r'seen{who="\\ud800"} 1.0', r'seen{who="\\ud801"} 1.0', 'seen{who="plain"} 1.0', "other 2.0"):
        assert f"\n{line}\n" in f"\n{page}"
