"""Each broken plugin is caught by the one check that is meant for its fault, in words that name the fault."""

from __future__ import annotations

import inspect
import re

import pytest

from conformance.broken import conduct, data, declarations, flow_control, learnt, profiles
from conformance.broken.register import BROKEN, DISTRIBUTION, UNDEMANDING, Broken
from endpick.api import Scorer
from endpick.host.discovery import Candidate
from endpick.testing import all_checks, conformance, exercise
from endpick.testing.kit import CheckStatus, ConformanceReport, describe_outcome


@pytest.fixture(autouse=True)
def _nothing_stays_open():
    yield
    while data.KEPT:
        data.KEPT.pop().close()


def test_every_module_of_broken_plugins_takes_part():
    assert {broken.plugin.__module__ for broken in BROKEN} == {
        module.__name__ for module in (declarations, profiles, conduct, data, flow_control, learnt)
    }


@pytest.fixture(autouse=True)
def _distributions(make_distribution, monkeypatch):
    for name, requires in ((DISTRIBUTION, ["endpick>=0.1"]), (UNDEMANDING, [])):
        monkeypatch.syspath_prepend(make_distribution(name, requires=requires))


def installed(plugin: type, plugin_type: str, distribution: str = DISTRIBUTION) -> Candidate:
    """The entry point as the plugin's distribution would have it."""
    return Candidate(plugin_type, 1, distribution, "1.0", f"{plugin.__module__}:{plugin.__qualname__}", "/site-packages")


def judge(broken: Broken) -> ConformanceReport:
    """What the kit says."""
    offer = installed(broken.plugin, broken.plugin_type, broken.distribution)
    return conformance(broken.plugin, candidates=[offer], **broken.inputs)


@pytest.mark.long
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.plugin.__name__)
def test_fault_is_caught_by_its_own_check_only(broken: Broken, monkeypatch):
    if broken.check == "source_ends_when_cancelled":  # every check that starts it waits in vain
        monkeypatch.setattr(exercise, "CANCEL_SECONDS", 0.2)
        monkeypatch.setattr(exercise, "GRACE_SECONDS", 0.1)

    report = judge(broken)

    assert {outcome.check.id: describe_outcome(outcome, report.subject) for outcome in report.faults}.keys() == {broken.check}
    (fault,) = report.faults
    assert broken.message in describe_outcome(fault, report.subject)
    assert all(finding.help for finding in fault.findings)


class Endless(Scorer):
    """Never answers."""

    def score(self, request, endpoints, state):
        while True:
            pass


def test_a_plugin_that_never_answers_is_given_up_with_the_place():
    report = conformance(Endless, candidates=[installed(Endless, "broken.endless")], limit_seconds=0.2)

    (fault,) = report.faults
    (finding,) = fault.findings
    after = [outcome for outcome in report.outcomes if outcome.check.id == "works_after_a_reload"]
    assert fault.check.id == "scorer_rates_every_endpoint"
    assert finding.message.startswith("it did not come back within 0.2 s, at ")
    assert finding.message.endswith(" in score")
    assert [(one.status, one.reason) for one in after] == [(CheckStatus.SKIPPED, "`scorer_rates_every_endpoint` did not end")]


@pytest.mark.parametrize(
    "broken",
    [one for one in BROKEN if " raises " in one.message and one.check != "can_be_built"],
    ids=lambda broken: broken.plugin.__name__,
)
def test_raising_plugin_is_reported_with_its_own_line(broken: Broken):
    report = judge(broken)

    (fault,) = report.faults
    assert re.search(rf" at {re.escape(inspect.getfile(broken.plugin))}:\d+ in \w+", fault.findings[0].message), fault.findings


def test_every_check_has_a_plugin_that_breaks_it():
    by_entry_point = {"has_an_entry_point"}

    assert {broken.check for broken in BROKEN} | by_entry_point == {check.id for check in all_checks()}


def test_what_the_host_refuses_is_said_once():
    unfinished = next(broken for broken in BROKEN if broken.plugin.__name__ == "Unfinished")

    report = judge(unfinished)

    assert [outcome.check.id for outcome in report.outcomes if outcome.status is not CheckStatus.SKIPPED] == ["loads"]
