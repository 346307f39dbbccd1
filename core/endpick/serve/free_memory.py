"""Memory that nothing in this process uses: what the C library keeps of it for what comes next, and when the system gets it back."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from endpick.requests.memory import DROP_BYTES, MemoryAccount, OverloadStage

_STATM = Path("/proc/self/statm")
_SMAPS = Path("/proc/self/smaps")
_KEPT_FREE_BYTES: Final = 32 * 1024 * 1024
_SHORT_SHARE: Final = 10
"""One part of so many of what the process may use may be free while memory is short, unless that is more than can be given back at once."""
_MAPPED_BYTES: Final = 4 * 1024 * 1024
_NEVER: Final = 2**31 - 1
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def resident_bytes() -> int:
    """What the operating system has given this process; 0 where it does not say."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


class FreeMemory:
    """Gives back what is free once there is much of it: whenever much less is held than was, and while memory is short.

    The second is for what the account does not tell: while as much comes as goes, it stays as it is, but what comes need not fit where
    something went. Bodies of twenty megabytes come in pieces of 250 KB, which the C library has from its heap; the prompts that a helper
    reads of them are whole, and mapped by themselves. So 150 MB were held, and 550 resident.
    """

    def __init__(self, account: MemoryAccount) -> None:
        self._account = account
        self._least_bytes = 0
        """That were resident and not accounted for at any time since memory was given back: no use to try that again for them."""
        account.on_drop.append(lambda: give_back(_KEPT_FREE_BYTES))

    def look(self) -> None:
        """Give back if it is time; called after the account was `measured`."""
        account = self._account
        unaccounted = account.unaccounted_bytes
        self._least_bytes = min(self._least_bytes, unaccounted)
        if account.stage > OverloadStage.NORMAL and unaccounted - self._least_bytes > min(DROP_BYTES, account.limit_bytes // _SHORT_SHARE):
            give_back()
            account.measured(resident_bytes(), account.learnt_bytes)
            self._least_bytes = account.unaccounted_bytes


def keep_free_memory() -> None:
    """Have glibc keep what is free for what comes next, and map nothing that is shorter than the largest usual bodies.

    It gives the free end of its heap back after each body of some hundred kilobytes otherwise, and the next one faults in every page
    again: up to a fifth of what such a request costs. And where the last of a hundred bodies is freed, it gives back all at once, within
    that call. `give_back` is called when there is much, and often enough.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_TRIM_THRESHOLD, _NEVER)
        library.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


def share_free_memory() -> None:
    """Have glibc take memory for all threads from one heap.

    It gives each thread a heap of its own otherwise, and keeps what is free there for that thread. grpcio reads floods now on one thread,
    now on another, so that one does not find the memory of the last one: five times ten thousand streams that were reset took it to between
    134 and 152 MiB, rising each time, where one heap takes 115 and stays there. Only threads that start afterwards do so.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def give_back(kept_bytes: int = 0) -> None:
    """Have the C library give free memory back to the system but for so much, where it is glibc, which keeps it otherwise."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(kept_bytes)


def release_start_code() -> None:
    """Have the system unmap what it keeps in memory of files and nothing has written to: most of it only the start ran or read.

    What is needed again is mapped again when it is touched, from the page cache. A mapping of which a page was changed is left alone, as a
    loader or a tracer does that: its changes are in no file.
    """
    with suppress(OSError, AttributeError, ValueError):
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        with _SMAPS.open(encoding="utf-8", errors="replace") as smaps:
            for begin, end in tuple(unchanged_mappings(smaps)):
                advise(begin, end - begin, mmap.MADV_DONTNEED)


def unchanged_mappings(smaps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Begin and end of each private mapping of a file that cannot be written and of which no page was changed, by lines of `smaps`."""
    addresses = ""
    for line in smaps:
        words = line.split(None, 5)
        if "-" in words[0]:
            is_file = len(words) == 6 and words[5].startswith("/")
            addresses = words[0] if is_file and words[1] in ("r--p", "r-xp") else ""
        elif addresses and words[:2] == ["Anonymous:", "0"]:
            begin, _, end = addresses.partition("-")
            yield int(begin, 16), int(end, 16)
