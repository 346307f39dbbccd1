"""Runs the conformance checks on a plugin class, with or without pytest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from typing import Any, TypeVar

from endpick.api.data import AnyKey
from endpick.api.plugin import Parameters, Plugin
from endpick.host.discovery import Candidate, discover
from endpick.host.failures import PLUGIN_ERRORS, describe_error, place, trace_notes
from endpick.testing.checks import conduct, data_layer, declarations, flow_control, learnt, request_path, scheduling
from endpick.testing.plugin_under_test import (
    Check,
    Finding,
    Inputs,
    NotApplicable,
    PluginUnderTest,
    TimeLimitExceeded,
    checks_in,
    plugin_under_test,
    time_limit,
)

FIRST = declarations.loads

_MODULES = (declarations, scheduling, request_path, flow_control, data_layer, learnt, conduct)


class CheckStatus(StrEnum):
    """The result of one check, in `CheckOutcome.status`."""

    PASSED = "passed"
    """The plugin keeps the rule."""
    FAILED = "failed"
    """The plugin breaks the rule, or the check ended with an error."""
    EXPECTED = "failed as expected"  # as declared in `expected_failures`
    """The check failed, as declared in `expected_failures`."""
    UNEXPECTED = "passed unexpectedly"
    """The check passed, although `expected_failures` names it."""
    SKIPPED = "skipped"  # it cannot judge this plugin
    """The check cannot judge this plugin."""


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """The findings of one check.

    Attributes:
        check: The rule.
        status: The result.
        findings: One per fault.
        reason: Why the check was skipped, or is expected to fail.
    """

    check: Check
    status: CheckStatus
    findings: tuple[Finding, ...] = ()
    reason: str = ""

    @property
    def is_fault(self) -> bool:
        """True if the plugin, or `expected_failures`, must be corrected."""
        return self.status in (CheckStatus.FAILED, CheckStatus.UNEXPECTED)


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    """The outcomes of all checks that apply to one plugin class.

    Attributes:
        subject: The plugin class with its entry points and parameters.
        outcomes: One per check, in the order of `all_checks`.
    """

    subject: PluginUnderTest
    outcomes: tuple[CheckOutcome, ...]

    @property
    def conforms(self) -> bool:
        """True if no outcome is a fault."""
        return not any(outcome.is_fault for outcome in self.outcomes)

    @property
    def faults(self) -> tuple[CheckOutcome, ...]:
        """The outcomes that must be corrected, in order."""
        return tuple(outcome for outcome in self.outcomes if outcome.is_fault)


def all_checks() -> tuple[Check, ...]:
    """Return every check of the kit, in the order in which they run."""
    return tuple(check for module in _MODULES for check in checks_in(module))


def checks_for(plugin: type[Plugin[Parameters]]) -> tuple[Check, ...]:
    """Return the checks that apply to a plugin class, in order."""
    return tuple(check for check in all_checks() if check.concerns(plugin))


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
) -> ConformanceReport:
    """Run every check that applies to a plugin class, and return the outcomes.

    Args:
        plugin: The class; it need not be installed.
        parameters: The first `parameters:` block. Default: defaults, and examples of required fields.
        examples: Further blocks that must work.
        payloads: For data collectors: payloads that a source would deliver.
        samples: Values of data keys that the kit cannot generate.
        expected_failures: Reasons by check id, for checks that may fail.
        candidates: The installed entry points. Default: those of the environment.
        limit_seconds: Time limit of each check, only in the main thread; a timeout skips the remaining checks.

    Raises:
        ValueError: `expected_failures` names an unknown check or gives no reason.
    """
    expected = _validated(expected_failures)
    subject = plugin_under_test(
        plugin, discover() if candidates is None else candidates, Inputs(parameters, examples, payloads, samples or {})
    )
    outcomes: list[CheckOutcome] = []
    checks = checks_for(plugin)
    for check in checks:
        try:
            with time_limit(limit_seconds):
                outcomes.append(run(check, subject, expected.get(check.id)))
        except TimeLimitExceeded as problem:
            outcomes.append(CheckOutcome(check, CheckStatus.FAILED, (_timed_out(limit_seconds, problem),)))
            outcomes += [CheckOutcome(rest, CheckStatus.SKIPPED, reason=f"`{check.id}` did not end") for rest in checks[len(outcomes) :]]
            break
    return ConformanceReport(subject, tuple(outcomes))


def _timed_out(limit_seconds: float | None, problem: TimeLimitExceeded) -> Finding:
    where = place(problem)
    message = f"it did not come back within {limit_seconds:g} s" + (f", at {where}" if where else "")
    return Finding(message, "look for a loop without an end, or for waiting on the request path")


def run(check: Check, subject: PluginUnderTest, expected: str | None = None) -> CheckOutcome:
    """Run one check, and return its outcome; `expected` is the reason why it may fail.

    Raises only KeyboardInterrupt.
    """
    if check is not FIRST and subject.refusals:
        return CheckOutcome(check, CheckStatus.SKIPPED, reason=f"the host does not load the class, see `{FIRST.id}`")
    try:
        findings = tuple(check.question(subject))
    except NotApplicable as lack:
        return CheckOutcome(check, CheckStatus.SKIPPED, reason=str(lack))
    except PLUGIN_ERRORS as problem:
        # Errors outside guarded calls are reported with their place in the plugin.
        notes = "; ".join(trace_notes(problem)) or "report this: it is a fault of the kit"
        findings = (Finding(f"the check ended with {describe_error(problem)}", notes),)
    if expected is None:
        return CheckOutcome(check, CheckStatus.FAILED if findings else CheckStatus.PASSED, findings)
    return CheckOutcome(check, CheckStatus.EXPECTED if findings else CheckStatus.UNEXPECTED, findings, expected)


def _validated(expected: Mapping[str, str] | None) -> Mapping[str, str]:
    known = {check.id for check in all_checks()}
    for check_id, reason in (expected or {}).items():
        if check_id not in known:
            raise ValueError(f"there is no check '{check_id}'; the checks are {', '.join(sorted(known))}")
        if not reason.strip():
            raise ValueError(f"say why '{check_id}' may fail")
    return expected or {}


def describe_outcome(outcome: CheckOutcome, subject: PluginUnderTest) -> str:
    """Return an outcome as text, with a line of help for each finding."""
    lines = []
    for finding in outcome.findings:
        lines += [f"{subject.name}: {finding.message}", f"  help: {finding.help}"]
    if outcome.status is CheckStatus.UNEXPECTED:
        lines.append(f"{subject.name}: `{outcome.check.id}` passes, and is declared to fail: {outcome.reason}")
        lines.append("  help: remove it from expected_failures")
    return "\n".join([*lines, f"  rule: {outcome.check.doc} [{outcome.check.id}]", f"  class: {subject.target}"])


Test = TypeVar("Test", bound=Callable[..., object])

ARGUMENT = "check"


def parametrize_conformance(
    plugins: Sequence[type[Plugin[Any]]],
    *,
    parameters: Mapping[str, object] | None = None,
    examples: Sequence[Mapping[str, object]] = (),
    payloads: Sequence[object] = (),
    samples: Mapping[AnyKey, Sequence[object]] | None = None,
    expected_failures: Mapping[str, str] | None = None,
) -> Callable[[Test], Test]:
    """Make one test for each pair of plugin and check; the test function takes `check` and calls it.

    ```python
    @parametrize_conformance([LatencyScorer])
    def test_conformance(check):
        check()
    ```

    Test ids look like `test_conformance[acme.latency-scorer-scorer_stays_in_range]`; select with `pytest -k in_range`.

    Args:
        plugins: Plugin classes; the other arguments apply to all of them.
        parameters: The first `parameters:` block. Default: defaults, and examples of required fields.
        examples: Further blocks that must work.
        payloads: For data collectors: payloads that a source would deliver.
        samples: Values of data keys that the kit cannot generate.
        expected_failures: Reasons by check id, for checks that may fail; a declared failure that passes is an error.

    Raises:
        ValueError: `expected_failures` names an unknown check or gives no reason.
    """
    import pytest

    expected = _validated(expected_failures)
    inputs = Inputs(parameters, examples, payloads, samples or {})
    # one subject per class: the host examines it once
    subjects = [plugin_under_test(plugin, _installed(), inputs) for plugin in plugins]
    return pytest.mark.parametrize(
        ARGUMENT, [_case(subject, check, expected.get(check.id)) for subject in subjects for check in checks_for(subject.plugin)]
    )


def _case(subject: PluginUnderTest, check: Check, expected: str | None):  # type: ignore[no-untyped-def]  # noqa: ANN202
    # pytest's own type of parameter sets is private.
    import pytest

    marks = [] if expected is None else [pytest.mark.xfail(strict=True, reason=expected, raises=pytest.fail.Exception)]
    return pytest.param(partial(_judge, subject, check), id=f"{subject.name}-{check.id}", marks=marks)


def _judge(subject: PluginUnderTest, check: Check) -> None:
    import pytest

    __tracebackhide__ = True
    outcome = run(check, subject)
    if outcome.status is CheckStatus.SKIPPED:
        pytest.skip(outcome.reason)
    if outcome.is_fault:
        pytest.fail(describe_outcome(outcome, subject), pytrace=False)


@cache
def _installed() -> tuple[Candidate, ...]:
    return discover()
