"""The part of a traceback that helps a plugin's author: their own frames, without the host's and the import system's."""

from __future__ import annotations

import importlib
import os
import sysconfig
import traceback
from pathlib import Path

_NOT_THEIRS = (
    str(Path(__file__).resolve().parents[1]) + os.sep,
    str(Path(importlib.__file__).parent) + os.sep,
    "<frozen importlib",
)
_MOST_FRAMES = 12
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
_INSTALLED = {"site-packages", "dist-packages"}


def plugin_frames(error: BaseException) -> tuple[traceback.FrameSummary, ...]:
    """Frames of `error` that belong neither to endpick's host nor to the import system; innermost last."""
    return tuple(frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_NOT_THEIRS))


def place(error: BaseException) -> str:
    """Where the plugin went wrong, `file:line in function`; empty when no plugin code ran.

    It is the plugin's own innermost line, not that of a library it called: that is where its author has to look.
    """
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


def describe(error: BaseException) -> str:
    """An exception in one line, without the traceback: `ValueError: no such model`."""
    try:
        message = " ".join(str(error).split())
    except Exception:
        message = "(its message cannot be shown)"
    return f"{type(error).__qualname__}: {message}" if message else type(error).__qualname__


def trace_notes(error: BaseException) -> tuple[str, ...]:
    """The plugin's frames as one note of a diagnostic; none when no plugin code ran."""
    frames = plugin_frames(error)
    if not frames:
        return ()
    lines = [f"{frame.filename}:{frame.lineno} in {frame.name}" + (f"\n    {frame.line}" if frame.line else "") for frame in frames]
    omitted = [f"({len(lines) - _MOST_FRAMES} more frames)"] if len(lines) > _MOST_FRAMES else []
    return ("\n".join(["raised at, innermost last:", *omitted, *lines[-_MOST_FRAMES:]]),)
