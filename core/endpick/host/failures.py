"""Errors of plugins and hook objects that the host contains."""

from __future__ import annotations

import importlib
import os
import sysconfig
import traceback
from pathlib import Path

PLUGIN_ERRORS = (Exception, SystemExit)  # other errors pass: KeyboardInterrupt, GeneratorExit and CancelledError are the host's


def describe_error(error: BaseException) -> str:
    """Return the class and message of an exception on one line, cut to 500 characters."""
    message = " ".join(str(error).split())
    return (f"{type(error).__name__}: {message}" if message else type(error).__name__)[:500]


class FaultOfAnother(BaseException):
    """Carries the fault of a nested call through the caller, which must not catch it."""

    def __init__(self, fault: object) -> None:
        """Make a carrier of a `boundary.Fault` that is already logged."""
        super().__init__(str(fault))
        self.fault = fault


_HOST_OR_IMPORT_SYSTEM = (
    str(Path(__file__).resolve().parents[1]) + os.sep,
    str(Path(importlib.__file__).parent) + os.sep,
    "<frozen importlib",
)
_MOST_FRAMES = 12
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
_INSTALLED = {"site-packages", "dist-packages"}


def plugin_frames(error: BaseException) -> tuple[traceback.FrameSummary, ...]:
    """Return the frames outside the host, pluggy and the import system, innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    return tuple(frame for frame in frames if not frame.filename.startswith(_HOST_OR_IMPORT_SYSTEM))


def place(error: BaseException) -> str:
    """Return the plugin's innermost frame as `file:line in function`; empty without one."""
    frames = plugin_frames(error)
    called = next((frame for frame in frames if not _is_standard(Path(frame.filename))), None)
    if called is None:
        return ""
    file = Path(called.filename)
    home = file if file.parent.name in _INSTALLED else file.parent
    own = next(frame for frame in reversed(frames) if Path(frame.filename).is_relative_to(home))
    return f"{own.filename}:{own.lineno} in {own.name}"


def _is_standard(file: Path) -> bool:
    return file.is_relative_to(_STANDARD_LIBRARY) and not _INSTALLED & set(file.parts)


def trace_notes(error: BaseException) -> tuple[str, ...]:
    """Return the frames of the plugin as a diagnostic note."""
    frames = plugin_frames(error)
    if not frames:
        return ()
    lines = [f"{frame.filename}:{frame.lineno} in {frame.name}" + (f"\n    {frame.line}" if frame.line else "") for frame in frames]
    omitted = [f"({len(lines) - _MOST_FRAMES} more frames)"] if len(lines) > _MOST_FRAMES else []
    return ("\n".join(["raised at, innermost last:", *omitted, *lines[-_MOST_FRAMES:]]),)
