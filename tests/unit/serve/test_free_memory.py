from __future__ import annotations

import platform
import subprocess
import sys

import pytest

BODIES = """
import resource
from endpick.serve.overload import keep_free_memory

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
from endpick.serve.overload import give_back, keep_free_memory, resident_bytes

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
