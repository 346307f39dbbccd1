"""The page of metrics is the one that `prometheus_client` would write, and writing it holds up nothing else."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from endpick.api.fast_metrics import Distributions
from endpick.observability.text_page import page_of


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
