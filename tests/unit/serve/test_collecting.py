"""The search for garbage while `endpick serve` serves: in short parts, and in full only where that is short or may help."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import pytest

from endpick.requests.memory import MemoryAccount, OverloadStage
from endpick.serve.garbage import FullSearches, collect_rarely

MIB = 1024 * 1024


@pytest.fixture
def collecting():
    thresholds = gc.get_threshold()
    collect_rarely()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.fixture
def searched():
    """How many objects each search looked at, by generation."""
    found: dict[int, list[int]] = {0: [], 1: [], 2: []}

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            found[info["generation"]].append(sum(len(gc.get_objects(each)) for each in range(info["generation"] + 1)))

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


class Ring:
    """Refers to itself, so that only a search finds it."""

    def __init__(self) -> None:
        self.itself = self


def grown_old() -> weakref.ref[Ring]:
    """Garbage that has outlived the searches in parts: so many follow that a full one is due."""
    ring = Ring()
    alive = [[number] for number in range(2_000_000)]
    assert len(alive) == 2_000_000
    return weakref.ref(ring)


def much_held(limit_bytes: int) -> tuple[MemoryAccount, FullSearches, weakref.ref[Ring]]:
    """100 MiB are held of so many, beside 50 that the process uses anyway, and there is garbage."""
    account = MemoryAccount(limit_bytes, 50 * MIB)
    account.hold_parsed(100 * MIB)
    return account, FullSearches(account), grown_old()


@pytest.mark.usefixtures("collecting")
def test_of_what_lives_on_no_more_than_some_ten_thousand_objects_are_searched_at_once(searched):
    alive = [[number] for number in range(2_000_000)]
    assert len(alive) == 2_000_000
    assert len(searched[1]) > 40
    assert max(searched[1]) < 50_000
    assert max(searched[0]) < 15_000
    assert searched[2] == []


@pytest.mark.usefixtures("collecting")
def test_objects_that_take_the_place_of_old_ones_are_searched_in_parts_though_python_does_not_count_them(searched):
    alive = [[number] for number in range(200_000)]
    searches = FullSearches(MemoryAccount(1000 * MIB))
    for number in range(200_000):
        alive[number] = [number]
        if not number % 20_000:
            searches.look(0.0)
    assert max(searched[1]) < 60_000
    assert len(gc.get_objects(0)) + len(gc.get_objects(1)) < 60_000
    done = len(searched[1])
    searches.look(0.0)
    searches.look(0.0)
    assert len(searched[1]) <= done + 1, "what is little stays as it is"


@pytest.mark.usefixtures("collecting")
def test_all_is_searched_while_little_is_held_and_not_again_at_once(searched):
    searches = FullSearches(MemoryAccount(1000 * MIB))
    searches.look(1.0)
    assert searched[2] == []
    ring = grown_old()
    searches.look(2.0)
    assert ring() is None
    assert len(searched[2]) == 1
    ring = grown_old()
    searches.look(2.0)
    assert ring() is not None
    searches.look(100_000.0)
    assert ring() is None


@pytest.mark.usefixtures("collecting")
def test_where_much_is_held_all_is_searched_only_while_memory_is_short_for_no_reason_that_is_known(searched):
    account, searches, ring = much_held(1000 * MIB)
    account.measured(650 * MIB, 0)
    searches.look(1.0)
    assert ring() is not None
    account.measured(750 * MIB, 0)
    assert account.stage is OverloadStage.RELEASING
    searches.look(2.0)
    assert ring() is None
    searches.look(500.0)
    assert len(searched[2]) == 1
    searches.look(700.0)
    assert len(searched[2]) == 2

    account.hold_parsed(600 * MIB)
    searches.look(10_000.0)
    assert len(searched[2]) == 2


@pytest.mark.usefixtures("collecting")
def test_where_much_is_held_all_is_searched_once_much_more_is_resident_than_is_accounted_for(searched):
    account, searches, ring = much_held(10_000 * MIB)
    for now, resident in enumerate((300, 200, 310)):  # 64 and half of what is held may come to what there was at least
        account.measured(resident * MIB, 0)
        searches.look(float(now))
    assert ring() is not None
    account.measured(320 * MIB, 0)
    searches.look(3.0)
    assert ring() is None
    for now, resident in ((4.0, 480), (602.0, 480), (604.0, 480)):
        account.measured(resident * MIB, 0)
        searches.look(now)
    assert len(searched[2]) == 1, "it was not to find anything less than was there after the last one"
    account.measured(600 * MIB, 0)
    searches.look(605.0)
    assert len(searched[2]) == 2
    account.measured(900 * MIB, 0)
    searches.look(606.0)
    searches.look(1000.0)
    assert len(searched[2]) == 2, "not again so soon"


def test_a_look_disturbs_no_thread_that_is_making_a_tuple():
    over, failed = threading.Event(), list[BaseException]()

    def make() -> None:
        try:
            while not over.is_set():
                assert len(tuple(each for each in range(200))) == 200
        except BaseException as problem:  # a test would not notice the end of a thread
            failed.append(problem)

    searches, interval = FullSearches(MemoryAccount(0)), sys.getswitchinterval()
    makers = [threading.Thread(target=make) for _ in range(2)]
    sys.setswitchinterval(1e-6)
    try:
        for maker in makers:
            maker.start()
        for now in range(3000):
            searches.look(float(now))
    finally:
        over.set()
        for maker in makers:
            maker.join()
        sys.setswitchinterval(interval)
    assert failed == []
