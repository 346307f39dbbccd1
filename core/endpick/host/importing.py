"""Imports the target of an entry point, and tells a wrong entry point from a module that fails while it is imported."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import re
import sysconfig
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from endpick.diagnostics import Code, Diagnostic
from endpick.host.discovery import Candidate
from endpick.host.failures import CALL_FAILURES, is_a, is_the_hosts, kind_of, message_of
from endpick.host.guard import UntrustedModuleError
from endpick.host.resolution import Reference
from endpick.host.tracebacks import frames_of

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
    return frames_of(error, _NOT_THEIRS)


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
    message = " ".join(message_of(error).split())
    return f"{kind_of(error)}: {message}" if message else kind_of(error)


def trace_notes(error: BaseException) -> tuple[str, ...]:
    """The plugin's frames as one note of a diagnostic; none when no plugin code ran."""
    frames = plugin_frames(error)
    if not frames:
        return ()
    lines = [f"{frame.filename}:{frame.lineno} in {frame.name}" + (f"\n    {frame.line}" if frame.line else "") for frame in frames]
    omitted = [f"({len(lines) - _MOST_FRAMES} more frames)"] if len(lines) > _MOST_FRAMES else []
    return ("\n".join(["raised at, innermost last:", *omitted, *lines[-_MOST_FRAMES:]]),)


_origin: ContextVar[str] = ContextVar("endpick_plugin_origin", default="")


@contextmanager
def attributed(origin: str) -> Iterator[None]:
    """Mark everything logged meanwhile as caused by `origin`, such as `queue-scorer (endpick 0.1.0)`."""
    token = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(token)


class Attribution(logging.Filter):
    """Gives records that a plugin causes the attribute `plugin`: on whose behalf they were written. For handlers, not for loggers."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Stamp the record; keep every one."""
        origin = _origin.get()
        if origin and not hasattr(record, "plugin"):
            record.plugin = origin
        return True


@dataclass(slots=True)
class CapturedOutput:
    """What plugin code printed, and which warnings it raised, while it ran."""

    text: str = ""
    """Standard output and standard error, in the order written."""

    warnings: list[warnings.WarningMessage] = field(default_factory=list)


@contextmanager
def captured() -> Iterator[CapturedOutput]:
    """Catch what is printed and warned meanwhile, so that it neither mixes with our own output nor goes unnoticed.

    Also what child processes and C code write; but only what goes to the process's own standard streams.
    """
    output = CapturedOutput()
    with (
        _scratch_file() as file,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("default")
        try:
            with redirect_stdout(file), redirect_stderr(file), _descriptor_redirected(1, file), _descriptor_redirected(2, file):
                yield output
        finally:
            file.seek(0)
            output.text = file.read()
            output.warnings = list(caught)


def _scratch_file() -> IO[str]:
    """A file without a name; in memory where the system can, because a disk may be full, read-only, or have lost its directory."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("endpick-output"), "w+", encoding="utf-8", errors="replace", buffering=1)
    return tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace", buffering=1)


@contextmanager
def _descriptor_redirected(descriptor: int, file: IO[str]) -> Iterator[None]:
    try:
        saved = os.dup(descriptor)
    except OSError:  # a daemon may have closed it
        yield
        return
    try:
        file.flush()
        os.dup2(file.fileno(), descriptor)
        yield
    finally:
        file.flush()
        os.dup2(saved, descriptor)
        os.close(saved)


_TARGET = re.compile(r"(?P<module>\w+(\.\w+)*)\s*(:\s*(?P<attribute>\w+(\.\w+)*))?\s*(\[.*\])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Imported:
    """What an entry point leads to, whatever that is."""

    value: object
    seconds: float
    output: CapturedOutput


def import_target(reference: Reference, candidate: Candidate) -> Imported | Diagnostic:
    """Import the candidate's module and look its attribute up.

    Everything the module raises becomes a diagnostic, `SystemExit` included; only the operator's Ctrl-C passes.
    """
    match = _TARGET.fullmatch(candidate.target.strip())
    if match is None:
        return _wrong_module(reference, candidate, f"'{candidate.target}' is not of the form 'module:attribute'")
    begin = time.perf_counter()
    with attributed(f"{candidate.type} ({candidate.origin})"), captured() as output:
        try:
            module = importlib.import_module(match["module"])
        except CALL_FAILURES as error:
            if is_the_hosts(error):
                raise
            return _import_failed(reference, candidate, match["module"], error)
        try:
            value = functools.reduce(getattr, (match["attribute"] or "").split(".") if match["attribute"] else (), module)
        except CALL_FAILURES as error:
            if is_the_hosts(error):
                raise
            if is_a(error, AttributeError) and not plugin_frames(error):
                return _wrong_attribute(reference, candidate, match["module"], match["attribute"])
            return _raised(reference, candidate, error)
    return Imported(value, time.perf_counter() - begin, output)


def _import_failed(reference: Reference, candidate: Candidate, module: str, error: BaseException) -> Diagnostic:
    if is_a(error, ModuleNotFoundError) and error.name and not plugin_frames(error):
        missing_itself = module == error.name or module.startswith(error.name + ".")
        if missing_itself:
            forgotten = "" if ":" in candidate.target else "; a colon stands between module and class"
            return _wrong_module(reference, candidate, f"there is no module '{error.name}'{forgotten}")
    if is_a(error, ModuleNotFoundError) and error.name:
        return _missing_dependency(reference, candidate, error, error.name)
    if is_a(error, UntrustedModuleError):
        return _untrusted(reference, candidate, error)
    return _raised(reference, candidate, error)


def _untrusted(reference: Reference, candidate: Candidate, error: UntrustedModuleError) -> Diagnostic:
    return reference.diagnostic(
        Code.E0308, error.what, candidate, annotation="differs from the lock file", help=error.repair, notes=trace_notes(error)
    )


def _wrong_module(reference: Reference, candidate: Candidate, reason: str) -> Diagnostic:
    return reference.diagnostic(
        Code.E0303,
        f"the entry point of '{candidate.type}' in {candidate.origin} is wrong: {reason}",
        candidate,
        annotation=f"leads to {candidate.target}",
        help=f"reinstall {candidate.distribution}; if that does not help, its author has to correct the entry point",
        notes=(f"the entry point is written in {candidate.metadata_path}",),
    )


def _wrong_attribute(reference: Reference, candidate: Candidate, module: str, attribute: str) -> Diagnostic:
    return reference.diagnostic(
        Code.E0319,
        f"the entry point of '{candidate.type}' in {candidate.origin} is wrong: module '{module}' has no '{attribute}'",
        candidate,
        annotation=f"leads to {candidate.target}",
        help=f"reinstall {candidate.distribution}; if that does not help, its author has to correct the entry point",
        notes=(f"the entry point is written in {candidate.metadata_path}",),
    )


def _missing_dependency(reference: Reference, candidate: Candidate, error: BaseException, module: str) -> Diagnostic:
    return reference.diagnostic(
        Code.E0305,
        f"'{candidate.type}' cannot be imported: {candidate.origin} needs the module '{module}', which is not installed",
        candidate,
        annotation="its import fails",
        help=f"install what provides '{module}', or reinstall {candidate.distribution} with its dependencies",
        notes=trace_notes(error),
    )


def _raised(reference: Reference, candidate: Candidate, error: BaseException) -> Diagnostic:
    return reference.diagnostic(
        Code.E0305,
        f"'{candidate.type}' cannot be imported: {candidate.origin} raised {describe(error)}",
        candidate,
        annotation="its import fails",
        help=f"this is a fault of {candidate.distribution}, not of the configuration; report it to its author, or install another release",
        notes=trace_notes(error),
    )
