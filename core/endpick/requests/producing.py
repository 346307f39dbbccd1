"""Decisions that wait; coroutines stay interpreted in the compiled build."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from endpick.api.access import Access
from endpick.host.boundary import Fault
from endpick.requests.intake import BuiltRequest
from endpick.requests.model import Decision, Refused, RequestRefused, refused
from endpick.requests.pipeline import Job
from endpick.requests.steps import CompiledProducer, produce


class SynchronousSteps(Protocol):
    """The synchronous part of the director."""

    @property
    def access(self) -> Access:
        """The host's."""

    def prepare(self, job: Job) -> bool:
        """See `Director.prepare`."""

    def conclude(self, job: Job) -> Decision:
        """See `Director.conclude`."""

    def refuse(self, refusal: Refused, built: BuiltRequest | None) -> Refused:
        """See `Director.refuse`."""


async def decide_later(director: SynchronousSteps, job: Job, waiting: Awaitable[None] | None) -> Decision:
    """Finish a decision that waits for flow control or, with `waiting` None, for producers."""
    try:
        if waiting is not None:
            await waiting
            if not director.prepare(job):
                return director.conclude(job)
        for producer in job.pipeline.producers_later:
            if producer.awaits:
                await _produce_later(producer, director.access, job)
            else:
                produce((producer,), job.built.request, job.endpoints, job.state, director.access)
        return director.conclude(job)
    except RequestRefused as refusal:
        return director.refuse(refusal.refused, job.built)


async def _produce_later(producer: CompiledProducer, host: Access, job: Job) -> None:
    """Await a producer under its own `Access`, because other requests run meanwhile."""
    access = Access(None, host.on_violation)
    endpoints, state = job.endpoints._accessed_by(access), job.state._accessed_by(access)
    answer = await producer.step.run_async(access, producer.timeout_seconds, job.built.request, endpoints, state)
    if isinstance(answer, Fault) and answer.refuses:
        raise RequestRefused(refused(answer))
