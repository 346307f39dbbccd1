"""The search for garbage while `endpick serve` serves: in short parts."""

from __future__ import annotations

import gc

import pytest

from endpick.serve.main import collect_rarely


@pytest.fixture
def collecting():
    thresholds = gc.get_threshold()
    collect_rarely()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.usefixtures("collecting")
def test_of_what_lives_on_no_more_than_some_ten_thousand_objects_are_searched_at_once_but_in_a_full_search():
    searched: dict[int, list[int]] = {0: [], 1: []}

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] in searched:
            searched[info["generation"]].append(sum(len(gc.get_objects(each)) for each in range(info["generation"] + 1)))

    gc.callbacks.append(note)
    try:
        alive = [[number] for number in range(300_000)]
    finally:
        gc.callbacks.remove(note)
    assert len(alive) == 300_000
    assert len(searched[1]) >= 5
    assert max(searched[1]) < 50_000
    assert max(searched[0]) < 15_000
