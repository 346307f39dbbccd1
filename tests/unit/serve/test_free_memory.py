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
