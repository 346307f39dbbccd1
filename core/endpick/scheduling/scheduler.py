"""The scheduler: runs the profiles that the profile handler names until it names no more, and takes its decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TypeAlias

from endpick.api.access import Access
from endpick.api.endpoints import Endpoints
from endpick.api.request import InferenceRequest, Rejection
from endpick.api.scheduling import ProfileHandler, ProfileRunResult, SchedulingResult
from endpick.api.state import CycleState
from endpick.observability.telemetry import Telemetry
from endpick.plugins.failures import CALL_FAILURES, kind_of
from endpick.plugins.instance import Instance
from endpick.scheduling.profile import NO_ENDPOINTS, Profile
from endpick.scheduling.step import Fault, Step, bind

Runs: TypeAlias = Mapping[str, ProfileRunResult]

REJECTED_SATURATED = "rejected-saturated"


@dataclass(frozen=True, slots=True)
class Scheduler:
    """One compiled profile handler and the profiles it chooses among, in configuration order."""

    profiles: Mapping[str, Profile]
    names: tuple[str, ...]
    pick_profiles: Step
    process_results: Step

    def schedule(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState, access: Access) -> SchedulingResult | Rejection:
        """Decide where the request goes. Synchronous, and it never raises. Its calls are left for `settle` to count.

        Returns:
            The handler's decision, or why there is none: 429 when no endpoint would do, 500 when a plugin's fault forbids an answer.
        """
        access.called.append((None, perf_counter()))
        runs: dict[str, ProfileRunResult] = {}
        # Ends after len(names) rounds at most, because naming a profile twice is a fault.
        while len(runs) < len(self.names):
            step = self.pick_profiles
            access.scope = step.scope
            answer: object
            try:
                answer = (step.ask if step.breaker.state else step.call)(request, self.names, runs, state)
                access.called.append((step, perf_counter()))
            except CALL_FAILURES as problem:
                answer = step.failed(problem, access)
            # Nearly every handler wants all profiles at once, which leaves nothing to check.
            try:
                wanted = self.names if answer is self.names and not runs else self._wanted(answer, runs)
            except CALL_FAILURES as problem:
                wanted = step.failed(problem, access)
            if isinstance(wanted, Fault):
                access.scope = None
                return _rejection(str(wanted), fault=True)
            if not wanted:
                break
            for name in wanted:
                if runs:
                    state._begin_profile_run()
                runs[name] = self.profiles[name].run(request, endpoints, state, access)
        if not runs:
            access.scope = None
            return _rejection(f"failed to run any scheduler profile for request {request.id}")
        step = self.process_results
        access.scope = step.scope
        result: object
        try:
            result = (step.ask if step.breaker.state else step.call)(request, runs, state)
            access.called.append((step, perf_counter()))
        except CALL_FAILURES as problem:
            result = step.failed(problem, access)
        access.scope = None
        try:
            decided = isinstance(result, SchedulingResult)
        except CALL_FAILURES as problem:
            result, decided = step.fault(problem), False
        if isinstance(result, Fault):
            return _rejection(str(result), fault=True)
        if not decided or not isinstance(result, SchedulingResult):
            return _rejection(str(step.fault(f"answered {kind_of(result)}, not a SchedulingResult")), fault=True)
        if result.failure:
            return _without_decision(result.failure, runs)
        primary = runs.get(result.primary)
        if primary is None or primary.picked is None or result.runs is not runs or not result.destinations:
            unusable = _unusable(result, runs)
            if unusable is not None:
                return _rejection(str(step.fault(unusable)), fault=True)
        return result

    def _wanted(self, answer: object, runs: Runs) -> tuple[str, ...] | Fault:
        """The profiles that the handler wants run next."""
        names = answer if isinstance(answer, Fault) else self._named(answer, runs)
        return self.pick_profiles.fault(names) if isinstance(names, str) else names

    def _named(self, answer: object, runs: Runs) -> tuple[str, ...] | str:
        """The profiles that the handler wants run next, or what is wrong with its answer."""
        if isinstance(answer, str) or not isinstance(answer, tuple | list | Sequence):
            return f"answered {kind_of(answer)}, not a sequence of profile names"
        names = tuple(answer)
        for name in names:
            if not isinstance(name, str) or name not in self.profiles:
                return f"named a profile that does not exist: '{name}'"
        if len(set(names)) != len(names) or not runs.keys().isdisjoint(names):
            return f"named a profile twice: {_listed(names)} after {_listed(runs)}"
        return names


def compile_scheduler(handler: Instance, profiles: Mapping[str, Profile], telemetry: Telemetry) -> Scheduler:
    """Bind the handler's methods. Raises TypeError when it is no profile handler: a mistake in the plan."""
    return Scheduler(
        dict(profiles),
        tuple(profiles),
        bind(handler, ProfileHandler, "pick_profiles", telemetry),
        bind(handler, ProfileHandler, "process_results", telemetry),
    )


def _unusable(result: SchedulingResult, runs: Runs) -> str | None:
    primary = runs.get(result.primary)
    if primary is None or primary.picked is None:
        return f"decided for profile '{result.primary}', which picked nothing"
    if result.runs.get(result.primary) is not primary:
        return f"answered another run of profile '{result.primary}' than the one it was given"
    if not result.destinations:
        return "decided for no destination"
    return None


def _without_decision(sentence: str, runs: Runs) -> Rejection:
    """The handler gave up: say what became of each run, and whether the pool or a plugin is to blame."""
    failed = [runs[name] for name in sorted(runs) if runs[name].picked is None]
    causes = "; ".join(f"{run.profile}: {run.failure}" for run in failed)
    message = f"{sentence} ({causes})" if causes else sentence
    drained = any(run.failure == NO_ENDPOINTS for run in failed)
    return _rejection(message, fault=any(run.fault for run in failed), reason=REJECTED_SATURATED if drained else "")


def _rejection(message: str, *, fault: bool = False, reason: str = "") -> Rejection:
    text = f"failed to find target endpoint: {message}"
    return Rejection(text, 500) if fault else Rejection(text, 429, reason)


def _listed(names: Iterable[object]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
