"""Endpoints that come and go all the time, move, or share an address, in virtual time."""

from __future__ import annotations

import asyncio

import numpy as np

from endpick.api import Endpoint
from unit.data.collecting import SEEN, Polling, Rig, endpoint, now

PERIOD_SECONDS = 1.0


def test_an_endpoint_that_flaps_each_second_is_asked_only_while_it_is_there_and_leaves_nothing_behind(
    run_virtual, recorder, make_instance, keep
):
    source = make_instance(Polling, "polling")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.upsert(endpoint("steady"))
            spans, most = [], 0
            for _ in range(120):
                came = now()
                table.upsert(endpoint("flapping", "10.0.0.2"))
                assert np.isnan(table.view()[SEEN][table.generation.row_of["flapping"]]), "it knows nothing of the one before"
                await asyncio.sleep(PERIOD_SECONDS / 2)
                table.remove("flapping")
                spans.append((came, now()))
                await asyncio.sleep(PERIOD_SECONDS / 2)
                most = max(most, len(asyncio.all_tasks()))
            return spans, most

    spans, most = run_virtual(scenario())
    asked = source.plugin.times_of("flapping")
    assert all(any(came <= at <= went for came, went in spans) for at in asked)
    assert 120 * 4 <= len(asked) <= 120 * 7
    assert most <= 8
    gaps = np.diff(source.plugin.times_of("steady"))
    assert gaps.max() < 0.2, "its neighbour is asked as ever"


def test_an_endpoint_that_comes_back_elsewhere_starts_anew(run_virtual, recorder, make_instance, keep):
    class Hosts(Polling):
        async def answer(self, endpoint):
            return float(endpoint.host.rpartition(".")[2]) + endpoint.port / 100_000

    async def scenario():
        async with Rig(recorder, [make_instance(Hosts, "hosts")], [keep]) as table:
            seen = []
            for host, port in (("10.0.0.1", 8000), ("10.0.0.2", 8000), ("10.0.0.2", 8001)):
                table.upsert(Endpoint("a", host, port))
                before = table.view()[SEEN][0]
                await asyncio.sleep(0.5)
                seen.append((before, table.view()[SEEN][0]))
            return seen

    seen = run_virtual(scenario())
    assert [round(after, 5) for _, after in seen] == [1.08, 2.08, 2.08001]
    assert all(np.isnan(before) for before, _ in seen)


def test_endpoints_that_share_an_address_or_a_whole_server_have_values_of_their_own(run_virtual, recorder, make_instance, keep):
    class Names(Polling):
        async def answer(self, endpoint):
            return {"rank-0": 1.0, "rank-1": 2.0, "twin": 3.0}[endpoint.name]

    async def scenario():
        async with Rig(recorder, [make_instance(Names, "names")], [keep]) as table:
            table.replace_all(
                [Endpoint("rank-0", "10.0.0.1", 8000), Endpoint("rank-1", "10.0.0.1", 8001), Endpoint("twin", "10.0.0.1", 8000)]
            )
            await asyncio.sleep(1)
            table.remove("rank-0")
            await asyncio.sleep(1)
            return dict(zip((member.name for member in table.view()), table.view()[SEEN].tolist(), strict=True))

    assert run_virtual(scenario()) == {"rank-1": 2.0, "twin": 3.0}
