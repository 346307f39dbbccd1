"""Runs the kit over a plugin class, without pytest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from endpick.api.data import AnyKey
from endpick.api.plugin import Parameters, Plugin, kinds_of
from endpick.plugins.discovery import Candidate, discover
from endpick.plugins.frames import describe, place, trace_notes
from endpick.testing.check import Check, Finding, NotApplicable, checks_in
from endpick.testing.checks import (
    collectors,
    conduct,
    contract,
    filters,
    handlers,
    keys,
    lifecycle,
    metadata,
    parameters,
    pickers,
    request_path,
    scorers,
    sources,
)
from endpick.testing.limits import TookTooLong, time_limit
from endpick.testing.subject import Material, Subject, subject_of

FIRST = contract.loads
"""What every other check presupposes."""

_MODULES = (
    contract,
    metadata,
    parameters,
    filters,
    scorers,
    pickers,
    handlers,
    sources,
    collectors,
    request_path,
    keys,
    conduct,
    lifecycle,
)


class Status(StrEnum):
    """What came of one check."""

    PASSED = "passed"
    FAILED = "failed"
    EXPECTED = "failed as expected"
    """It failed, and its author has said why it may."""
    UNEXPECTED = "passed unexpectedly"
    """It passed, and its author has said that it fails: the reason given has gone."""
    SKIPPED = "skipped"
    """It could not judge this plugin."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one check found; `reason` says why it was skipped, or why it is expected to fail."""

    check: Check
    status: Status
    findings: tuple[Finding, ...] = ()
    reason: str = ""

    @property
    def is_fault(self) -> bool:
        """Whether the plugin, or what is said of it, has to be corrected."""
        return self.status in (Status.FAILED, Status.UNEXPECTED)


@dataclass(frozen=True, slots=True)
class Report:
    """What the kit says of one plugin."""

    subject: Subject
    outcomes: tuple[Outcome, ...]

    @property
    def conforms(self) -> bool:
        """Whether there is nothing to correct."""
        return not any(outcome.is_fault for outcome in self.outcomes)

    @property
    def faults(self) -> tuple[Outcome, ...]:
        """The outcomes that have to be corrected."""
        return tuple(outcome for outcome in self.outcomes if outcome.is_fault)


def all_checks() -> tuple[Check, ...]:
    """Every check of the kit, in the order in which they run."""
    return tuple(check for module in _MODULES for check in checks_in(module))


def checks_for(plugin: type[Plugin[Parameters]]) -> tuple[Check, ...]:
    """The checks that concern a class."""
    return tuple(check for check in all_checks() if check.concerns(kinds_of(plugin)))


def conformance(
    plugin: type[Plugin[Any]],
    *,
    parameters: Mapping[str, object] | None = None,
    examples: Sequence[Mapping[str, object]] = (),
    payloads: Sequence[object] = (),
    samples: Mapping[AnyKey, Sequence[object]] | None = None,
    expected_failures: Mapping[str, str] | None = None,
    candidates: Sequence[Candidate] | None = None,
    limit_seconds: float | None = None,
) -> Report:
    """Run every check that concerns a plugin class.

    Args:
        plugin: The class.
        parameters: A `parameters:` block to begin with; the defaults, and examples of required fields, unless given.
        examples: Further blocks that must work.
        payloads: For data collectors: what a source would deliver.
        samples: Values of data keys, for keys whose values the kit cannot make up.
        expected_failures: Check ids and the reason why each may fail.
        candidates: The installed entry points; looked up unless given.
        limit_seconds: How long one check may take, for plugins that may never answer; after one that took longer, the rest is skipped.
            Heeded in the main thread only.

    Raises:
        ValueError: `expected_failures` names an unknown check, or gives no reason.
    """
    expected = checked_expectations(expected_failures)
    subject = subject_of(plugin, discover() if candidates is None else candidates, Material(parameters, examples, payloads, samples or {}))
    outcomes: list[Outcome] = []
    checks = checks_for(plugin)
    for check in checks:
        try:
            with time_limit(limit_seconds):
                outcomes.append(run(check, subject, expected.get(check.id)))
        except TookTooLong as problem:
            outcomes.append(Outcome(check, Status.FAILED, (_endless(limit_seconds, problem),)))
            outcomes += [Outcome(rest, Status.SKIPPED, reason=f"`{check.id}` did not end") for rest in checks[len(outcomes) :]]
            break
    return Report(subject, tuple(outcomes))


def _endless(limit_seconds: float | None, problem: TookTooLong) -> Finding:
    where = place(problem)
    message = f"it did not come back within {limit_seconds:g} s" + (f", at {where}" if where else "")
    return Finding(message, "look for a loop without an end, or for waiting on the request path")


def run(check: Check, subject: Subject, expected: str | None = None) -> Outcome:
    """Judge one subject by one check; `expected` is the reason why it may fail. Raises nothing but KeyboardInterrupt."""
    if check is not FIRST and subject.refusals:
        return Outcome(check, Status.SKIPPED, reason=f"the host does not load the class, see `{FIRST.id}`")
    try:
        findings = tuple(check.question(subject))
    except NotApplicable as lack:
        return Outcome(check, Status.SKIPPED, reason=str(lack))
    except (Exception, SystemExit) as problem:
        # Whatever a plugin does outside the calls that are guarded, its author shall read where, and not a traceback of ours.
        notes = "; ".join(trace_notes(problem)) or "report this: it is a fault of the kit"
        findings = (Finding(f"the check ended with {describe(problem)}", notes),)
    if expected is None:
        return Outcome(check, Status.FAILED if findings else Status.PASSED, findings)
    return Outcome(check, Status.EXPECTED if findings else Status.UNEXPECTED, findings, expected)


def checked_expectations(expected: Mapping[str, str] | None) -> Mapping[str, str]:
    """The declared failures, once it is known that each names a check and gives a reason."""
    known = {check.id for check in all_checks()}
    for check_id, reason in (expected or {}).items():
        if check_id not in known:
            raise ValueError(f"there is no check '{check_id}'; the checks are {', '.join(sorted(known))}")
        if not reason.strip():
            raise ValueError(f"say why '{check_id}' may fail")
    return expected or {}


def told(outcome: Outcome, subject: Subject) -> str:
    """An outcome as the plugin's author reads it: each fault with what to do, the rule, and the class."""
    lines = []
    for finding in outcome.findings:
        lines += [f"{subject.name}: {finding.message}", f"  help: {finding.help}"]
    if outcome.status is Status.UNEXPECTED:
        lines.append(f"{subject.name}: `{outcome.check.id}` passes, and is declared to fail: {outcome.reason}")
        lines.append("  help: remove it from expected_failures")
    return "\n".join([*lines, f"  rule: {outcome.check.doc} [{outcome.check.id}]", f"  class: {subject.target}"])
