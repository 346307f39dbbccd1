"""The scheduler: runs the profiles that the profile handler names until it names no more, and takes its decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from types import MappingProxyType
from typing import Final, TypeAlias

from endpick.api.access import Access
from endpick.api.endpoints import Endpoints
from endpick.api.request import InferenceRequest, Rejection, shown
from endpick.api.scheduling import ProfileHandler, ProfileRunResult, SchedulingResult
from endpick.api.state import CycleState
from endpick.host.boundary import Fault, Step, bind
from endpick.host.failures import CALL_FAILURES, kind_of
from endpick.host.instance import Instance
from endpick.host.telemetry import Telemetry
from endpick.scheduling.profile import NO_ENDPOINTS, Profile

Runs: TypeAlias = Mapping[str, ProfileRunResult]

REJECTED_SATURATED = "rejected-saturated"
_ONLY_TEXTS: Final = frozenset({str})


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
        shown: Runs = MappingProxyType(runs)
        # Ends after len(names) rounds at most, because naming a profile twice is a fault, and the handler cannot take a run back.
        while len(runs) < len(self.names):
            step = self.pick_profiles
            access.scope = step.scope
            answer: object
            try:
                answer = (step.ask if step.breaker.state else step.call)(request, self.names, shown, state)
                access.called.append((step, perf_counter()))
            except CALL_FAILURES as problem:
                answer = step.failed(problem, access)
            # Nearly every handler wants all profiles at once, which leaves nothing to check.
            try:
                wanted = self.names if answer is self.names and not runs else self._wanted(answer, runs)
            except CALL_FAILURES as problem:
                wanted = step.failed(problem, access)
            if isinstance(wanted, Fault):
                if wanted.refuses or len(self.names) > 1:
                    access.scope = None
                    return _rejection(str(wanted), fault=True)
                wanted = self.names
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
            result = (step.ask if step.breaker.state else step.call)(request, shown, state)
            access.called.append((step, perf_counter()))
        except CALL_FAILURES as problem:
            result = step.failed(problem, access)
        access.scope = None
        if type(result) is Fault:
            return _without_handler(result, shown)
        try:
            if type(result) is SchedulingResult:
                decision = result
            elif isinstance(result, SchedulingResult):
                decision = _plainly(result)
            else:
                return _without_handler(step.fault(f"answered {kind_of(result)}, not a SchedulingResult"), shown)
            if decision.failure:
                return _without_decision(decision.failure, runs)
            primary = runs.get(decision.primary)
            places = decision.destinations
            usual = primary is not None and primary.picked is not None and decision.runs is shown and places
            if (
                usual
                and (_ONLY_TEXTS.issuperset(map(type, places)) if len(places) > 1 else type(places[0]) is str)
                and type(decision.headers) is dict
                and type(decision.removed_headers) is tuple
            ):
                return decision
            decision = _plainly(decision)
            unusable = _unusable(decision, runs)
            if unusable is None:
                return decision
        except CALL_FAILURES as problem:
            return _without_handler(step.failed(problem, access), shown)
        return _without_handler(step.fault(unusable), shown)

    def _wanted(self, answer: object, runs: Runs) -> tuple[str, ...] | Fault:
        """The profiles that the handler wants run next."""
        names = answer if isinstance(answer, Fault) else self._named(answer, runs)
        return self.pick_profiles.fault(names) if isinstance(names, str) else names

    def _named(self, answer: object, runs: Runs) -> tuple[str, ...] | str:
        """The profiles that the handler wants run next, or what is wrong with its answer."""
        if isinstance(answer, str) or not isinstance(answer, tuple | list | Sequence):
            return f"answered {kind_of(answer)}, not a sequence of profile names"
        # No more than can be right, of an answer that may have no end; and each as plain text, for it is looked up again.
        names: tuple[str, ...] = ()
        for name in islice(answer, len(self.names) + 1):
            plain = str.__str__(name) if isinstance(name, str) else ""
            if plain not in self.profiles:
                return f"named a profile that does not exist: {shown(name)}"
            names += (plain,)
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


def _plainly(result: SchedulingResult) -> SchedulingResult:
    """A copy that nothing but endpick holds, checked anew.

    Raises:
        Anything: a field is not what it has to be, or raises when it is looked at.
    """
    runs = {str.__str__(name): run for name, run in result.runs.items()}
    return SchedulingResult(
        result.primary, runs, tuple(result.destinations), {**result.headers}, result.failure, tuple(result.removed_headers)
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


def _without_handler(fault: Fault, runs: Runs) -> SchedulingResult | Rejection:
    """What the only run says where the handler may be skipped: of several only the handler knows which of them serves a request."""
    if fault.refuses or len(runs) > 1:
        return _rejection(str(fault), fault=True)
    ((name, run),) = runs.items()
    if run.picked is None:
        return _without_decision(str(fault), runs)
    return SchedulingResult(name, runs, tuple([endpoint.address for endpoint in run.picked.members]))


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
