"""Imports the target of an entry point, or describes the failure."""

from __future__ import annotations

import functools
import importlib
import io
import logging
import re
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, field

from endpick.diagnostics import Code, Diagnostic
from endpick.host.discovery import Candidate
from endpick.host.failures import PLUGIN_ERRORS, describe_error, plugin_frames, trace_notes
from endpick.host.resolution import Reference

_origin: ContextVar[str] = ContextVar("endpick_plugin_origin", default="")


@contextmanager
def attributed(origin: str) -> Iterator[None]:
    """Attribute log records to `origin`, such as `queue-scorer (endpick 0.2.0)`."""
    token = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(token)


class Attribution(logging.Filter):
    """Handler filter that sets `plugin` on records written inside `attributed`."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every record, and set its `plugin`."""
        origin = _origin.get()
        if origin and not hasattr(record, "plugin"):
            record.plugin = origin
        return True


@dataclass(slots=True)
class CapturedOutput:
    """The output and warnings of plugin code."""

    text: str = ""
    warnings: list[warnings.WarningMessage] = field(default_factory=list)


@contextmanager
def captured() -> Iterator[CapturedOutput]:
    """Capture the output and warnings of Python code; the result is complete when the block ends."""
    output, printed = CapturedOutput(), io.StringIO()
    with warnings.catch_warnings(record=True) as caught, redirect_stdout(printed), redirect_stderr(printed):
        warnings.simplefilter("default")
        try:
            yield output
        finally:
            output.text, output.warnings = printed.getvalue(), list(caught)


_TARGET = re.compile(r"(?P<module>\w+(\.\w+)*)\s*(:\s*(?P<attribute>\w+(\.\w+)*))?\s*(\[.*\])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Imported:
    """The object that an entry point refers to, the seconds of the import, and its output."""

    value: object
    seconds: float
    output: CapturedOutput


def import_target(reference: Reference, candidate: Candidate) -> Imported | Diagnostic:
    """Import the target of an entry point; returns a diagnostic for any error."""
    match = _TARGET.fullmatch(candidate.target.strip())
    if match is None:
        return _wrong_entry_point(Code.E0303, reference, candidate, f"'{candidate.target}' is not of the form 'module:attribute'")
    begin = time.perf_counter()
    with attributed(f"{candidate.type} ({candidate.origin})"), captured() as output:
        try:
            module = importlib.import_module(match["module"])
        except PLUGIN_ERRORS as error:
            return _import_failed(reference, candidate, match["module"], error)
        try:
            value = functools.reduce(getattr, match["attribute"].split(".") if match["attribute"] else (), module)
        except PLUGIN_ERRORS as error:
            if isinstance(error, AttributeError) and not plugin_frames(error):
                return _wrong_entry_point(Code.E0319, reference, candidate, f"module '{match['module']}' has no '{match['attribute']}'")
            return _raised(reference, candidate, error)
    return Imported(value, time.perf_counter() - begin, output)


def _import_failed(reference: Reference, candidate: Candidate, module: str, error: BaseException) -> Diagnostic:
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return _raised(reference, candidate, error)
    missing_itself = module == error.name or module.startswith(error.name + ".")
    if missing_itself and not plugin_frames(error):
        forgotten = "" if ":" in candidate.target else "; a colon stands between module and class"
        return _wrong_entry_point(Code.E0303, reference, candidate, f"there is no module '{error.name}'{forgotten}")
    return _missing_dependency(reference, candidate, error, error.name)


def _wrong_entry_point(code: Code, reference: Reference, candidate: Candidate, reason: str) -> Diagnostic:
    return reference.diagnostic(
        code,
        f"the entry point of '{candidate.type}' in {candidate.origin} is wrong: {reason}",
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
        f"'{candidate.type}' cannot be imported: {candidate.origin} raised {describe_error(error)}",
        candidate,
        annotation="its import fails",
        help=f"this is a fault of {candidate.distribution}, not of the configuration; report it to its author, or install another release",
        notes=trace_notes(error),
    )
