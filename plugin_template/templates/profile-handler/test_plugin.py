"""Tests of `{{ cookiecutter.plugin_type }}`."""

from __future__ import annotations

from endpick.api import Endpoints, PluginContext, ProfileRunResult, SchedulingResult, ScoringState
from endpick.testing import make_request
from endpick.testing.pytest_plugin import MakeEndpoints
from endpick.testing.strategies import endpoints
from hypothesis import given
from hypothesis import strategies as st

from {{ cookiecutter.__package }}.handler import (
    {{ cookiecutter.__class }},
    {{ cookiecutter.__parameters }},
)


def decide(found: dict[str, Endpoints | None], attempts: int) -> tuple[list[str], SchedulingResult]:
    """The profiles that ran, and the decision, for the picks in `found`."""
    parameters = {{ cookiecutter.__parameters }}(attempts=attempts)
    plugin = {{ cookiecutter.__class }}("it", parameters, PluginContext())
    request, state, runs = make_request(), ScoringState(), dict[str, ProfileRunResult]()
    while names := plugin.pick_profiles(request, tuple(found), runs, state):
        for name in names:
            runs[name] = ProfileRunResult(name, found[name], failure=None if found[name] else "no endpoint is left")
    return list(runs), plugin.process_results(request, runs, state)


def test_next_profile_serves_when_the_first_finds_no_endpoint(make_endpoints: MakeEndpoints) -> None:
    ran, decision = decide({"cheap": None, "any": make_endpoints(1), "never": make_endpoints(2)}, attempts=3)

    assert ran == ["cheap", "any"]
    assert isinstance(decision, SchedulingResult)
    assert (decision.primary, decision.destinations) == ("any", ("10.0.0.1:8000",))


def test_refusal_says_why_each_profile_picked_nothing() -> None:
    _, decision = decide({"cheap": None, "any": None}, attempts=2)

    assert decision.failure == "cheap: no endpoint is left; any: no endpoint is left"


@given(st.lists(st.none() | endpoints(), min_size=1, max_size=5), st.integers(1, 6))
def test_profiles_run_until_one_picks_or_attempts_run_out(picks: list[Endpoints | None], attempts: int) -> None:
    ran, _ = decide({f"profile-{number}": pick for number, pick in enumerate(picks)}, attempts)

    first_success = next((number for number, pick in enumerate(picks) if pick is not None), len(picks))
    assert ran == [f"profile-{number}" for number in range(min(first_success + 1, attempts, len(picks)))]
