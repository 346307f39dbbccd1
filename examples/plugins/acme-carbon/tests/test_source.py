"""What `acme.carbon-source` brings, and what becomes of it."""

from __future__ import annotations

import pytest
from aiohttp import web
from endpick.api import Parameters, PluginContext, Unavailable
from endpick.testing import make_pool

from acme_carbon.collector import CarbonCollector
from acme_carbon.keys import CARBON_INTENSITY
from acme_carbon.source import CarbonReport, CarbonSource, CarbonSourceParameters


async def reports(*answers: str) -> list[CarbonReport]:
    """What the source brings while a service gives these answers, one after the other."""
    left = iter(answers)

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=next(left))

    application = web.Application()
    application.router.add_get("/carbon", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        parameters = CarbonSourceParameters(url=f"http://127.0.0.1:{runner.addresses[0][1]}/carbon")
        source = CarbonSource("it", parameters, PluginContext())
        await source.start()
        try:
            return [await source.poll_pool() for _ in answers]
        finally:
            await source.stop()
    finally:
        await runner.cleanup()


@pytest.mark.asyncio
async def test_every_answer_is_read() -> None:
    assert await reports('{"zones": {"a": 300}}', '{"zones": {"a": 290.5, "b": 20}}') == [
        CarbonReport({"a": 300}),
        CarbonReport({"a": 290.5, "b": 20}),
    ]


@pytest.mark.asyncio
@pytest.mark.parametrize("answer", ["", "[]", '{"zones": {"a": "much"}}', "<html>"])
async def test_answer_that_makes_no_sense_is_unavailable(answer: str) -> None:
    with pytest.raises(Unavailable, match=r"GET http://127\.0\.0\.1:"):
        await reports(answer)


def test_report_becomes_pool_data_without_what_makes_no_sense() -> None:
    table = make_pool(1, keys=[CARBON_INTENSITY])

    CarbonCollector("it", Parameters(), PluginContext()).collect(CarbonReport({"a": 300, "b": -1}), table.writer(None))

    assert table.view().pool(CARBON_INTENSITY) == {"a": 300}
