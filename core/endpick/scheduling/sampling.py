"""Scheduling of which a sample is recorded: the other requests pay for one draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

from endpick.api.access import Access
from endpick.api.endpoints import Endpoints
from endpick.api.request import InferenceRequest
from endpick.api.requests import Rejection
from endpick.api.scheduling import SchedulingResult
from endpick.api.state import CycleState
from endpick.scheduling.explaining import explained
from endpick.scheduling.record import DecisionRecord, ProfileRecord
from endpick.scheduling.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class SampledScheduler(Scheduler):
    """A scheduler that shows some of its decisions.

    Attributes:
        chosen: Asked once for each request, whether its decision is recorded.
        show: Given the record of a decision just taken, before it is answered: it may not wait.
    """

    chosen: Callable[[], bool] = field(kw_only=True)
    show: Callable[[DecisionRecord], None] = field(kw_only=True)

    def schedule(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState, access: Access) -> SchedulingResult | Rejection:
        """As the plain scheduler does."""
        if not self.chosen():
            return Scheduler.schedule(self, request, endpoints, state, access)
        runs: list[ProfileRecord] = []
        result = Scheduler.schedule(explained(self, runs.append), request, endpoints, state, access)
        self.show(_record(request, endpoints, result, runs))
        return result


def sampled(scheduler: Scheduler, chosen: Callable[[], bool], show: Callable[[DecisionRecord], None]) -> Scheduler:
    """The same scheduler, which shows the decisions that are chosen."""
    parts = {part.name: getattr(scheduler, part.name) for part in fields(Scheduler)}
    return SampledScheduler(**parts, chosen=chosen, show=show)


def _record(
    request: InferenceRequest, endpoints: Endpoints, result: SchedulingResult | Rejection, runs: Sequence[ProfileRecord]
) -> DecisionRecord:
    refusal = result if isinstance(result, Rejection) else None
    return DecisionRecord(
        request.id,
        request.model,
        request.path,
        request.priority,
        request.fairness_id,
        tuple([endpoint.name for endpoint in endpoints.members]),
        result.destinations if isinstance(result, SchedulingResult) else (),
        None if refusal is None else refusal.status,
        "" if refusal is None else refusal.message,
        tuple(runs),
    )
