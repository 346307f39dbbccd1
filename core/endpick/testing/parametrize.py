"""`parametrize_conformance`: the kit as pytest tests, one for each plugin and check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeVar

import pytest

from endpick.api.data import AnyKey
from endpick.api.plugin import Parameters, Plugin
from endpick.plugins.discovery import Candidate, discover
from endpick.testing.check import Check
from endpick.testing.kit import Status, checked_expectations, checks_for, run, told
from endpick.testing.subject import Material, Subject, subject_of

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
    """Make one test of each pair of plugin and check; the test function takes `check` and calls it.

    ```python
    @parametrize_conformance([LatencyScorer])
    def test_conformance(check):
        check()
    ```

    Tests are called `test_conformance[acme.latency-scorer-scorer_stays_in_range]`; select some with `pytest -k in_range`.

    Args:
        plugins: Plugin classes; what follows is for all of them.
        parameters: A `parameters:` block to begin with; the defaults, and examples of required fields, unless given.
        examples: Further blocks that must work.
        payloads: For data collectors: what a source would deliver.
        samples: Values of data keys, for keys whose values the kit cannot make up.
        expected_failures: Check ids and the reason why each may fail; a declared failure that passes is an error.

    Raises:
        ValueError: `expected_failures` names an unknown check, or gives no reason.
    """
    expected = checked_expectations(expected_failures)
    material = Material(parameters, examples, payloads, samples or {})
    return pytest.mark.parametrize(
        ARGUMENT, [_case(plugin, check, material, expected.get(check.id)) for plugin in plugins for check in checks_for(plugin)]
    )


def _case(plugin: type[Plugin[Parameters]], check: Check, material: Material, expected: str | None):  # type: ignore[no-untyped-def]  # noqa: ANN202
    # pytest's own type of parameter sets is private.
    marks = [] if expected is None else [pytest.mark.xfail(strict=True, reason=expected, raises=pytest.fail.Exception)]
    return pytest.param(partial(_judge, plugin, check, material), id=f"{Subject(plugin, ()).name}-{check.id}", marks=marks)


def _judge(plugin: type[Plugin[Parameters]], check: Check, material: Material) -> None:
    """Fail, skip or pass the test that is running."""
    __tracebackhide__ = True
    subject = subject_of(plugin, _installed(), material)
    outcome = run(check, subject)
    if outcome.status is Status.SKIPPED:
        pytest.skip(outcome.reason)
    if outcome.is_fault:
        pytest.fail(told(outcome, subject), pytrace=False)


@cache
def _installed() -> tuple[Candidate, ...]:
    return discover()
