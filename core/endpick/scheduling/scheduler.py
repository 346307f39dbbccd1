"""The scheduler: runs the profiles that the profile handler names until it names no more, and takes its decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from endpick.api.endpoints import Access, Endpoints
from endpick.api.request import InferenceRequest, Rejection
from endpick.api.scheduling import ProfileHandler, ProfileRunResult, SchedulingResult
from endpick.api.state import CycleState
from endpick.observability.telemetry import Telemetry
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
        """Decide where the request goes. Synchronous, and it never raises.

        Returns:
            The handler's decision, or why there is none: 429 when no endpoint would do, 500 when a plugin's fault forbids an answer.
        """
        runs = self._run_profiles(request, endpoints, state, access)
        if isinstance(runs, Fault):
            return _rejection(str(runs), fault=True)
        if not runs:
            return _rejection(f"failed to run any scheduler profile for request {request.id}")
        result = self.process_results.run(access, request, runs, state)
        if isinstance(result, Fault):
            return _rejection(str(result), fault=True)
        if not isinstance(result, SchedulingResult):
            fault = self.process_results.fault(f"answered {type(result).__name__}, not a SchedulingResult")
            return _rejection(str(fault), fault=True)
        if result.failure:
            return _without_decision(result.failure, runs)
        problem = _unusable(result, runs)
        return result if problem is None else _rejection(str(self.process_results.fault(problem)), fault=True)

    def _run_profiles(
        self, request: InferenceRequest, endpoints: Endpoints, state: CycleState, access: Access
    ) -> dict[str, ProfileRunResult] | Fault:
        # Ends after len(profiles) rounds at most, because naming a profile twice is a fault.
        runs: dict[str, ProfileRunResult] = {}
        while len(runs) < len(self.names):
            answer = self.pick_profiles.run(access, request, self.names, runs, state)
            if isinstance(answer, Fault):
                return answer
            # Nearly every handler wants all profiles at once, which leaves nothing to check.
            names = self.names if answer is self.names and not runs else self._named(answer, runs)
            if isinstance(names, str):
                return self.pick_profiles.fault(names)
            if not names:
                return runs
            for name in names:
                if runs:
                    state._begin_profile_run()
                runs[name] = self.profiles[name].run(request, endpoints, state, access)
        return runs

    def _named(self, answer: object, runs: Runs) -> tuple[str, ...] | str:
        """The profiles that the handler wants run next, or what is wrong with its answer."""
        if isinstance(answer, str) or not isinstance(answer, tuple | list | Sequence):
            return f"answered {type(answer).__name__}, not a sequence of profile names"
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
