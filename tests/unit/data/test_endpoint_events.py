"""Sources that tell of changes of the pool, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from endpick.api import DataCollector, EndpointChange, EndpointEventSource, Unavailable
from unit.data.collecting import SEEN, Rig, endpoint


class Changes(EndpointEventSource):
    """Delivers each event as it is, unless the label `silent` or `broken` says otherwise."""

    def notify(self, event):
        if "broken" in event.endpoint.labels:
            raise Unavailable("no news")
        return None if "silent" in event.endpoint.labels else event


class Diary(DataCollector):
    """Remembers what it was told, and writes a number for each endpoint."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.told: list[tuple[str, str, str]] = []

    def collect(self, payload, writer):
        self.told.append((payload.change.value, payload.endpoint.name, payload.endpoint.labels.get("zone", "")))
        writer.set(SEEN, float(len(self.told)))


def with_labels(name: str, **labels: str):
    return replace(endpoint(name), labels=labels)


def test_collectors_get_every_endpoint_event(run_virtual, recorder, make_instance):
    diary = make_instance(Diary, "diary", (SEEN,))

    async def scenario():
        async with Rig(recorder, [make_instance(Changes, "changes")], [diary]) as table:
            table.replace_all([with_labels("a", zone="1"), with_labels("b")])
            assert table.view()[SEEN].tolist() == [1.0, 2.0]
            table.upsert(with_labels("a", zone="1"))
            table.upsert(with_labels("a", zone="2"))
            moved = replace(with_labels("b"), port=9)
            table.upsert(moved)
            table.remove("a")
            await asyncio.sleep(0)
            assert table.view()[SEEN].tolist() == [5.0]

    run_virtual(scenario())
    assert diary.plugin.told == [
        ("added", "a", "1"),
        ("added", "b", ""),
        ("updated", "a", "2"),
        ("removed", "b", ""),
        ("added", "b", ""),
        ("removed", "a", "2"),
    ]
    assert (recorder.polls, recorder.collects) == ([], [])


def test_initial_endpoints_are_added_and_stop_removes_none(run_virtual, recorder, make_instance):
    diary = make_instance(Diary, "diary", (SEEN,))

    async def scenario():
        rig = Rig(recorder, [make_instance(Changes, "changes")], [diary])
        rig.table.replace_all([endpoint("a")])
        async with rig:
            pass

    run_virtual(scenario())
    assert [(change, name) for change, name, _ in diary.plugin.told] == [(EndpointChange.ADDED.value, "a")]


def test_a_source_that_has_nothing_to_say_or_fails_tells_nothing(run_virtual, recorder, make_instance):
    diary = make_instance(Diary, "diary", (SEEN,))

    async def scenario():
        async with Rig(recorder, [make_instance(Changes, "changes")], [diary]) as table:
            table.replace_all([with_labels("a", silent="yes"), with_labels("b", broken="yes"), with_labels("c")])

    run_virtual(scenario())
    assert [name for _, name, _ in diary.plugin.told] == ["c"]
    assert recorder.polls == [("changes", "b", "no news")]
