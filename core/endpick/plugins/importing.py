"""Imports the target of an entry point, and tells a wrong entry point from a module that fails while it is imported."""

from __future__ import annotations

import functools
import importlib
import re
import time
from dataclasses import dataclass

from endpick.diagnostics import Code, Diagnostic
from endpick.plugins.attribution import Output, attributed, captured
from endpick.plugins.discovery import Candidate
from endpick.plugins.frames import describe, plugin_frames, trace_notes
from endpick.plugins.reference import Reference

_TARGET = re.compile(r"(?P<module>\w+(\.\w+)*)\s*(:\s*(?P<attribute>\w+(\.\w+)*))?\s*(\[.*\])?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Imported:
    """What an entry point leads to, whatever that is."""

    value: object
    seconds: float
    output: Output


def import_target(reference: Reference, candidate: Candidate) -> Imported | Diagnostic:
    """Import the candidate's module and look its attribute up.

    Everything the module raises becomes a diagnostic, `SystemExit` included; only `KeyboardInterrupt` passes, because that
    is the operator's.
    """
    match = _TARGET.fullmatch(candidate.target.strip())
    if match is None:
        return _wrong_module(reference, candidate, f"'{candidate.target}' is not of the form 'module:attribute'")
    begin = time.perf_counter()
    with attributed(f"{candidate.type} ({candidate.origin})"), captured() as output:
        try:
            module = importlib.import_module(match["module"])
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return _import_failed(reference, candidate, match["module"], error)
        try:
            value = functools.reduce(getattr, (match["attribute"] or "").split(".") if match["attribute"] else (), module)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            if isinstance(error, AttributeError) and not plugin_frames(error):
                return _wrong_attribute(reference, candidate, match["module"], match["attribute"])
            return _raised(reference, candidate, error)
    return Imported(value, time.perf_counter() - begin, output)


def _import_failed(reference: Reference, candidate: Candidate, module: str, error: BaseException) -> Diagnostic:
    if isinstance(error, ModuleNotFoundError) and error.name and not plugin_frames(error):
        missing_itself = module == error.name or module.startswith(error.name + ".")
        if missing_itself:
            forgotten = "" if ":" in candidate.target else "; a colon stands between module and class"
            return _wrong_module(reference, candidate, f"there is no module '{error.name}'{forgotten}")
    if isinstance(error, ModuleNotFoundError) and error.name:
        return _missing_dependency(reference, candidate, error, error.name)
    return _raised(reference, candidate, error)


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
