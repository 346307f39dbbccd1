"""Opens files that may be something else, such as a pipe or a device, reading one of which never ends. Imports nothing slow."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from io import BufferedReader

_PIECE_BYTES = 1024 * 1024


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file for reading, and refuse what is none, without ever waiting.

    For files that are read again while the process serves. A pipe in the place of one would hold its reader until the process ends; a
    thread that waits so keeps the process from ending, too. Read no more than a limit of your own: a file may have any length.

    Raises:
        OSError: there is no such file, it may not be read, or it is a pipe, a device or a directory.
        ValueError: the path holds a NUL.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))


def is_regular(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file to read, and neither a pipe nor a device; for those that others open."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116 - pathlib is not needed for it
    except (OSError, ValueError):
        return False


def read_given(path: str | os.PathLike[str], most_bytes: int) -> bytes:
    """What the user of a command names, no more than so many bytes of it.

    A pipe is read, as a shell gives one for `<(...)`, unless no process has it open for writing: then there is nothing to wait for.

    Raises:
        OSError: it cannot be read, or it is such a pipe.
        ValueError: the path holds a NUL.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        begin = b""
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            with suppress(BlockingIOError):
                begin = os.read(descriptor, min(most_bytes, _PIECE_BYTES))
                if not begin:
                    raise OSError(errno.EINVAL, "it is a pipe that nothing is written to", os.fspath(path))
        os.set_blocking(descriptor, True)
        pieces, left = [begin], most_bytes - len(begin)
        while left > 0 and (piece := file.read(min(left, _PIECE_BYTES))):
            pieces.append(piece)
            left -= len(piece)
        return b"".join(pieces)


def write_given(path: str | os.PathLike[str], text: str) -> None:
    """Write where the user of a command says, as UTF-8, without waiting for a process that might read a pipe.

    Raises:
        OSError: it cannot be written, or it is a pipe that no process reads.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as problem:
        if problem.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "it is a pipe that no process reads", os.fspath(path)) from None
        raise
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
