"""Opens files that others may have replaced: by a pipe, a terminal or a device, reading one of which never ends. Imports nothing slow."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader


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
