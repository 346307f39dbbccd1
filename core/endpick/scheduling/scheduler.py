"""The scheduler runs the profiles that its handler names, and takes the handler's decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from endpick.api.access import Access
from endpick.api.endpoints import Endpoints
from endpick.api.request import InferenceRequest, Rejection
from endpick.api.scheduling import ProfileHandler, ProfileRunResult, SchedulingResult
from endpick.api.state import CycleState
from endpick.host.boundary import Fault, Step, bind
from endpick.host.instance import Instance
from endpick.host.telemetry import Telemetry
from endpick.scheduling.profile import NO_ENDPOINTS, Profile

Runs: TypeAlias = Mapping[str, ProfileRunResult]

REJECTED_SATURATED = "rejected-saturated"


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A compiled profile handler and the profiles it chooses among, in configuration order."""

    profiles: Mapping[str, Profile]
    names: tuple[str, ...]
    pick_profiles: Step
    process_results: Step

    def schedule(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState, access: Access) -> SchedulingResult | Rejection:
        """Choose endpoints. Never raises; rejects with 429 without an endpoint, with 500 after a fault."""
        runs: dict[str, ProfileRunResult] = {}
        shown = MappingProxyType(runs)
        # At most len(names) rounds, because naming a profile twice is a fault.
        while len(runs) < len(self.names):
            wanted = self._wanted(self.pick_profiles.run(access, request, self.names, shown, state), runs)
            if isinstance(wanted, Fault):
                if wanted.refuses or len(self.names) > 1:
                    return _rejection(str(wanted), fault=True)
                wanted = self.names
            if not wanted:
                break
            for name in wanted:
                if runs:
                    state._begin_profile_run()
                runs[name] = self.profiles[name].run(request, endpoints, state, access)
        if not runs:
            return _rejection(f"failed to run any scheduler profile for request {request.id}")
        result = _checked_result(self.process_results, self.process_results.run(access, request, shown, state))
        if isinstance(result, Fault):
            return _without_handler(result, shown)
        return _without_decision(result.failure, runs) if result.failure else result

    def _wanted(self, answer: object, runs: Runs) -> Sequence[str] | Fault:
        if isinstance(answer, Fault):
            return answer
        if answer is self.names and not runs:  # nearly always
            return self.names
        if isinstance(answer, str) or not isinstance(answer, Sequence):
            return self.pick_profiles.fault(f"answered {type(answer).__name__}, not a sequence of profile names")
        unknown = [name for name in answer if not isinstance(name, str) or name not in self.profiles]
        if unknown:
            return self.pick_profiles.fault(f"named a profile that does not exist: {unknown[0]!r:.80}")
        if len(set(answer)) != len(answer) or not runs.keys().isdisjoint(answer):
            return self.pick_profiles.fault(f"named a profile twice: {_listed(answer)} after {_listed(runs)}")
        return answer


def compile_scheduler(handler: Instance, profiles: Mapping[str, Profile], telemetry: Telemetry) -> Scheduler:
    """Bind the handler."""
    return Scheduler(
        dict(profiles),
        tuple(profiles),
        bind(handler, ProfileHandler, "pick_profiles", telemetry),
        bind(handler, ProfileHandler, "process_results", telemetry),
    )


def _checked_result(step: Step, answer: object) -> SchedulingResult | Fault:
    if isinstance(answer, Fault):
        return answer
    if not isinstance(answer, SchedulingResult):
        return step.fault(f"answered {type(answer).__name__}, not a SchedulingResult")
    if answer.failure:
        return answer
    run = answer.runs.get(answer.primary)
    if run is None or run.picked is None:
        return step.fault(f"decided for profile '{answer.primary}', which picked nothing")
    return answer if answer.destinations else step.fault("decided for no destination")


def _without_handler(fault: Fault, runs: Runs) -> SchedulingResult | Rejection:
    """The pick of the only run, if the handler may be skipped."""
    if fault.refuses or len(runs) > 1:
        return _rejection(str(fault), fault=True)
    ((name, run),) = runs.items()
    if run.picked is None:
        return _without_decision(str(fault), runs)
    return SchedulingResult(name, runs, tuple([endpoint.address for endpoint in run.picked.members]))


def _without_decision(sentence: str, runs: Runs) -> Rejection:
    """A rejection that names the cause of each failed run."""
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
