"""What the exit status of every `endpick` command means."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Documented exit statuses; scripts and CI may rely on them.

    Where several apply, the smallest wins: an operator repairs the own file before somebody else's package.
    """

    OK = 0
    """The command did what it was asked; there may have been warnings."""

    INTERNAL_ERROR = 1
    """A bug in endpick itself. Please report it."""

    USAGE = 2
    """The command line was wrong: unknown verb, unknown option, missing argument."""

    CONFIG_INVALID = 3
    """The configuration file has mistakes; each was reported with its place."""

    PLUGIN_UNUSABLE = 4
    """A plugin that the configuration needs is missing, broken or incompatible."""

    FAILED = 5
    """The environment refused: a port in use, a file unreadable, a start or stop that failed."""

    INTERRUPTED = 130
    """Stopped by Ctrl-C."""
