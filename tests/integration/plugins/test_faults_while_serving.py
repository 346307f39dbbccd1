"""Plugins that fail while they serve: what becomes of the request, and what the operator learns. Behaviour 43."""

from __future__ import annotations

import pytest

from integration.plugins.serving import serving

pytestmark = pytest.mark.long

FIRST, LAST = "127.0.0.1:1", "127.0.0.1:2"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("faulty", "reason", "said"),
    [
        ("faulty.raises", "LookupError", "no table of scores"),
        ("faulty.nan", "answer", "answered a score that is not a finite number"),
        ("faulty.omits", "answer", "answered scores of shape (1,) for 2 endpoints"),
        ("faulty.exits", "SystemExit", "not in the mood"),
        ("faulty.recurses", "RecursionError", "maximum recursion depth exceeded"),
    ],
)
async def test_behaviour_43_failing_scorer_is_skipped_and_counted(fixture_project, folder, faulty, reason, said):
    async with serving(folder(faulty), path=[fixture_project("faulty-scorers")]) as picker:
        assert {await picker.ask() for _ in range(5)} == {(LAST, 0)}, "the other scorer alone decides"

        stamp = {"plugin_name": "suspect", "plugin_type": faulty, "distribution": "faulty-scorers", "version": "2.3"}
        labels = {**stamp, "extension_point": "Scorer", "reason": reason}
        assert await picker.samples("endpick_plugin_faults_total") == {tuple(sorted(labels.items())): 5}
        await picker.logged("plugin fault in")

    (event,) = [event for event in picker.events if "plugin fault in" in str(event["event"])]
    assert event["event"] == f"plugin fault in suspect ({faulty}, faulty-scorers 2.3): {said}"
    told = {"plugin": "suspect", "type": faulty, "dist": "faulty-scorers", "dist_version": "2.3", "on_fault": "skip"}
    assert told.items() <= event.items()


@pytest.mark.asyncio
@pytest.mark.parametrize("faulty", ["faulty.raises", "faulty.nan", "faulty.omits"])
async def test_behaviour_43_failing_scorer_can_refuse_requests(fixture_project, folder, faulty):
    async with serving(folder(faulty, ", onFault: FailClose"), path=[fixture_project("faulty-scorers")]) as picker:
        assert await picker.ask() == ("", 500)
        (faults,) = (await picker.samples("endpick_plugin_faults_total")).values()
        (event,) = await picker.logged("plugin fault in")

    assert faults == 1
    assert event["on_fault"] == "refuse"


@pytest.mark.asyncio
async def test_behaviour_43_scores_outside_the_range_are_clamped(fixture_project, folder):
    async with serving(folder("faulty.high"), path=[fixture_project("faulty-scorers")]) as picker:
        assert await picker.ask() == (FIRST, 0)

        clamped = await picker.samples("endpick_scores_clamped_total")
        assert clamped == {(("plugin_name", "suspect"), ("plugin_type", "faulty.high")): 1}
        assert await picker.samples("endpick_plugin_faults_total") == {}
        (event,) = await picker.logged("are outside 0 to 1 and are clamped")

    assert event["event"] == "scores of suspect (faulty.high, faulty-scorers 2.3) are outside 0 to 1 and are clamped"
