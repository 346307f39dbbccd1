"""Errors of plugins and hook objects that the host contains."""

from __future__ import annotations

PLUGIN_ERRORS = (Exception, SystemExit)
"""Errors of a plugin. KeyboardInterrupt, GeneratorExit and CancelledError are the host's and pass."""


def describe_error(error: BaseException) -> str:
    """The class and message of an exception, for logs and diagnostics."""
    return f"{type(error).__name__}: {error}"[:500]


class FaultOfAnother(BaseException):
    """Carries the fault of a nested plugin call, which refuses the request, through the calling plugin.

    No `Exception`, so that the caller does not handle it by accident.
    """

    def __init__(self, fault: object) -> None:
        """`fault` is a `boundary.Fault`, counted and logged already."""
        super().__init__(str(fault))
        self.fault = fault
