"""Notices changes of the configuration file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_FileIdentity = tuple[int, int, int]  # inode, modification time, size


@dataclass(frozen=True, slots=True)
class WatchedFile:
    """A file's identity before it was read, to notice a change during the read."""

    path: Path
    seen: _FileIdentity | None

    @classmethod
    def now(cls, path: Path) -> WatchedFile:
        """Record the identity of a file; call it before the file is read."""
        return cls(path, _identity(path))

    async def watch(self, changed: Callable[[], None], interval_seconds: float = 1.0) -> None:
        """Call `changed` after each change, by polling: a ConfigMap changes by swapping a symlink."""
        seen = self.seen
        while True:
            now = _identity(self.path)
            if now is not None and now != seen:
                seen = now
                changed()
            await asyncio.sleep(interval_seconds)


def _identity(path: Path) -> _FileIdentity | None:
    """None while the file is missing, as during an editor's rename."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
