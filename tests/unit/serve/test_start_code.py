"""Memory that a start took of files is given back, and nothing that was changed is lost."""

from __future__ import annotations

import subprocess
import sys

import pytest

from endpick.serve.free_memory import unchanged_mappings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what is mapped, page by page")

MAPPINGS = """\
55d0a0000000-55d0a0001000 r-xp 00000000 fe:00 11   /usr/lib/library with a blank.so
Size:                  4 kB
Anonymous:             0 kB
7f0000000000-7f0000002000 r--p 00000000 fe:00 12   /usr/lib/tables.so
Anonymous:             0 kB
7f0000002000-7f0000004000 r--p 00002000 fe:00 12   /usr/lib/tables.so
Anonymous:             8 kB
7f0000004000-7f0000006000 rw-p 00004000 fe:00 12   /usr/lib/tables.so
Anonymous:             0 kB
7f0000006000-7f0000008000 r--s 00000000 fe:00 13   /var/cache/shared
Anonymous:             0 kB
7f0000008000-7f000000a000 r--p 00000000 00:00 0
Anonymous:             0 kB
7f000000a000-7f000000c000 r-xp 00000000 00:00 0    [vdso]
Anonymous:             0 kB
VmFlags: rd ex mr mw me de
"""


def test_only_what_is_on_a_disk_and_was_not_changed_is_given_back():
    assert list(unchanged_mappings(MAPPINGS.splitlines())) == [(0x55D0A0000000, 0x55D0A0001000), (0x7F0000000000, 0x7F0000002000)]


RELEASED = """
import ctypes, mmap, re, sys, tempfile
from pathlib import Path
import numpy as np
from endpick.serve.free_memory import release_start_code

def mapped_kib():
    return int(re.search(r"RssFile:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

with tempfile.TemporaryFile() as file:
    file.write(b"as on disk")
    file.flush()
    mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
mapped[:10] = b"as changed"
at = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(at), ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ) == 0
before = mapped_kib()
release_start_code()
print(before, mapped_kib(), ctypes.string_at(at, 10).decode(), np.linalg.det(np.eye(3)) + np.arange(10).sum())
"""


def test_what_a_process_read_of_its_libraries_is_given_back_and_what_it_changed_stays():
    told = subprocess.run([sys.executable, "-c", RELEASED], capture_output=True, text=True, check=True).stdout.split(maxsplit=2)
    before, after = map(int, told[:2])
    assert after < before * 0.6
    assert told[2].strip() == "as changed 46.0"
