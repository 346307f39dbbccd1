from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from endpick.requests.memory import MemoryAccount, OverloadStage
from endpick.serve.free_memory import FreeMemory

BODIES = """
import resource
from endpick.serve.free_memory import keep_free_memory

keep_free_memory()

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bodies = [bytes(bytearray(220_000)) for _ in range(20)]
    del bodies
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
print(max(faults() for _ in range(10)))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to keep memory")
def test_memory_that_bodies_gave_back_is_there_for_the_next_ones():
    told = subprocess.run([sys.executable, "-c", BODIES], capture_output=True, text=True, check=True)
    assert int(told.stdout) < 20 * 220_000 // 4096 // 10, "a page fault for each page, of which twenty bodies have a thousand"


GIVEN_BACK = """
from endpick.serve.free_memory import give_back, keep_free_memory, resident_bytes

keep_free_memory()
bodies = [bytes(900_000) + b"x" for _ in range(200)]
full = resident_bytes()
del bodies
kept = resident_bytes()
give_back(50_000_000)
print(full - kept, full - resident_bytes())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to keep memory")
def test_no_body_that_is_freed_takes_the_time_to_give_back_all_that_was_freed_before():
    told = subprocess.run([sys.executable, "-c", GIVEN_BACK], capture_output=True, text=True, check=True)
    by_freeing, by_giving_back = map(int, told.stdout.split())
    assert by_freeing < 20_000_000
    assert 100_000_000 < by_giving_back < 180_000_000


REPLACED = """
from endpick.requests.memory import MemoryAccount
from endpick.serve.free_memory import FreeMemory, keep_free_memory, resident_bytes

keep_free_memory()
size, base = 1 << 20, resident_bytes()
account = MemoryAccount(400 * size, base)
free = FreeMemory(account)
pieces = [bytes(size // 4) + b"x" for _ in range(800)]
bodies = [pieces[body::10] for body in range(10)]
del pieces
account.held_bytes = 200 * size
prompts, most = [], 0
for _ in range(10):
    bodies.pop()
    prompts.append(bytes(bytearray(20 * size)))
    account.measured(resident_bytes(), 0)
    free.look()
    most = max(most, resident_bytes() - base)
print(most // size)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to keep memory")
def test_bodies_that_become_something_of_another_size_are_given_back_while_others_come():
    told = subprocess.run([sys.executable, "-c", REPLACED], capture_output=True, text=True, check=True)
    assert int(told.stdout) < 200 + 40 + 2 * 20, "as much as is held, what may be free, and what one turn adds"


@pytest.fixture
def given_back(monkeypatch):
    given_back = []
    monkeypatch.setattr("endpick.serve.free_memory.give_back", lambda kept_bytes=0: given_back.append(kept_bytes))
    monkeypatch.setattr("endpick.serve.free_memory.resident_bytes", lambda: 900)
    return given_back


def test_what_does_not_come_of_giving_back_is_not_tried_again_and_more_is(given_back):
    account = MemoryAccount(1000)
    free = FreeMemory(account)
    tried = []
    for resident in (800, 900, 950, 1000, 1001, 1001, 850, 900, 950, 951):
        account.measured(resident, 0)
        free.look()
        tried.append(len(given_back))
    assert tried == [1, 1, 1, 1, 2, 3, 3, 3, 3, 4]


def test_nothing_is_given_back_for_its_own_sake_while_there_is_enough(given_back):
    account = MemoryAccount(1000)
    free = FreeMemory(account)
    account.measured(690, 0)
    free.look()
    assert (account.stage, given_back) == (OverloadStage.NORMAL, [])
