"""Checks of profile handlers, which are asked with made-up results; the profiles offered are those their parameters name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from endpick.api.plugin import Kind
from endpick.api.requests import Rejection
from endpick.api.scheduling import ProfileHandler, ProfileRunResult, SchedulingResult
from endpick.testing.bench import Bench, Raised, Scene, benches
from endpick.testing.check import Finding, check
from endpick.testing.profiles import profiles_of, runs_of
from endpick.testing.requests import varied_requests
from endpick.testing.subject import Subject

_LOOP_HELP = "name each profile once, only from `profiles`, and answer () when there is nothing left to run"


@check(Kind.PROFILE_HANDLER)
def handler_ends_its_loop(subject: Subject) -> Iterator[Finding]:
    """`pick_profiles` names profiles that exist, none twice, and then none, whether runs succeed or fail."""
    for bench in benches(subject):
        for scene, failed in _scenes(bench):
            outcome = _loop(bench, scene, failed)
            if isinstance(outcome, str):
                yield Finding(f"`pick_profiles` {outcome}", _LOOP_HELP)
                return


@check(Kind.PROFILE_HANDLER)
def handler_decides(subject: Subject) -> Iterator[Finding]:
    """`process_results` answers a decision for a profile that picked somebody, or a sentence that says why there is none."""
    for bench in benches(subject):
        plugin = bench.instance.plugin
        assert isinstance(plugin, ProfileHandler)
        for scene, failed in _scenes(bench):
            runs = _loop(bench, scene, failed)
            if isinstance(runs, str) or not runs:
                continue
            answer = bench.call(plugin.process_results, scene.request, runs, scene.state)
            problem = _undecided(answer, runs)
            if problem:
                came = ", ".join(f"'{name}' {'failed' if run.picked is None else 'picked'}" for name, run in runs.items())
                yield Finding(
                    f"`process_results` {problem}, where {came}",
                    "answer SchedulingResult(primary, results, destinations), or a sentence when the profile that matters has failed",
                )
                return


def _scenes(bench: Bench) -> Iterator[tuple[Scene, frozenset[str]]]:
    profiles = profiles_of(bench)
    outcomes = [frozenset[str](), frozenset(profiles), *(frozenset((name,)) for name in profiles)]
    for request in varied_requests():
        for failed in dict.fromkeys(outcomes):
            yield bench.scene(request=request), failed


def _loop(bench: Bench, scene: Scene, failed: frozenset[str]) -> dict[str, ProfileRunResult] | str:
    """The runs the handler asks for, as the scheduler runs them; or what is wrong with what it asks for."""
    plugin = bench.instance.plugin
    assert isinstance(plugin, ProfileHandler)
    profiles = profiles_of(bench)
    runs: dict[str, ProfileRunResult] = {}
    while True:
        answer = bench.call(plugin.pick_profiles, scene.request, profiles, dict(runs), scene.state)
        if isinstance(answer, Raised):
            return f"raises {answer}"
        if isinstance(answer, str) or not isinstance(answer, Sequence):
            return f"answers {type(answer).__name__}, not a sequence of profile names"
        if not answer:
            return runs
        unknown = [name for name in answer if name not in profiles]
        if unknown:
            return f"names a profile that does not exist: '{unknown[0]}', of {', '.join(profiles)}"
        if len(set(answer)) != len(answer) or not runs.keys().isdisjoint(answer):
            return f"names a profile again that has run: {', '.join(answer)}"
        runs |= runs_of(answer, scene.endpoints, failed)


def _undecided(answer: object, runs: dict[str, ProfileRunResult]) -> str | None:
    if isinstance(answer, Raised):
        return f"raises {answer}"
    if isinstance(answer, str):
        return None if answer.strip() else "answers an empty sentence"
    if isinstance(answer, Rejection) or not isinstance(answer, SchedulingResult):
        return f"answers {type(answer).__name__}, not a SchedulingResult or a sentence"
    primary = runs.get(answer.primary)
    if primary is None or primary.picked is None:
        return f"decides for profile '{answer.primary}', which picked nobody"
    if not answer.destinations or not all(":" in place for place in answer.destinations):
        return f"decides for the destinations {answer.destinations!r}, not for `host:port`"
    return None
