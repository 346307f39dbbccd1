"""Response observers: told how a response begins, when its first bytes arrive, and exactly once how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from endpick.api.access import Access
from endpick.api.request import InferenceRequest
from endpick.api.requests import ResponseEnd, ResponseHead, ResponseObserver
from endpick.api.state import CycleState
from endpick.observability.instruments import Instruments
from endpick.plugins.instance import Instance
from endpick.scheduling.step import ExtensionPoint, Fault, Step, bind, wrong_kind

StartedStep: TypeAlias = Step[[InferenceRequest, ResponseHead, CycleState], object]
FirstChunkStep: TypeAlias = Step[[InferenceRequest, CycleState], object]
EndedStep: TypeAlias = Step[[InferenceRequest, ResponseEnd, CycleState], object]


@dataclass(frozen=True, slots=True)
class CompiledObserver:
    """An observer's methods; those it left as they are in `ResponseObserver` are None and cost nothing."""

    started: StartedStep | None
    first_chunk: FirstChunkStep | None
    ended: EndedStep | None


def compile_observer(instance: Instance, instruments: Instruments) -> CompiledObserver:
    """Bind the methods that the instance defines. Raises TypeError when it is no observer: a mistake in the plan."""
    plugin = instance.plugin
    if not isinstance(plugin, ResponseObserver):
        raise wrong_kind(instance, "response observer")
    defined = type(plugin)
    return CompiledObserver(
        bind(plugin.response_started, instance, ExtensionPoint.RESPONSE_RECEIVED, instruments)
        if defined.response_started is not ResponseObserver.response_started
        else None,
        bind(plugin.first_chunk, instance, ExtensionPoint.RESPONSE_STREAMING, instruments)
        if defined.first_chunk is not ResponseObserver.first_chunk
        else None,
        bind(plugin.response_ended, instance, ExtensionPoint.RESPONSE_COMPLETE, instruments)
        if defined.response_ended is not ResponseObserver.response_ended
        else None,
    )


@dataclass(frozen=True, slots=True)
class Observers:
    """The observers of one request."""

    each: Sequence[CompiledObserver]
    request: InferenceRequest
    state: CycleState
    access: Access

    def started(self, head: ResponseHead) -> dict[str, str]:
        """Tell all of them; returns the headers they want on the response, of equal names the last."""
        added: dict[str, str] = {}
        for observer in self.each:
            if observer.started is None:
                continue
            answer = observer.started.run(self.access, self.request, head, self.state)
            if isinstance(answer, Mapping):
                _add(answer, added, observer.started)
            elif answer is not None and not isinstance(answer, Fault):
                observer.started.fault(f"answered {type(answer).__name__}, not headers or None")
        return added

    def first_chunk(self) -> None:
        """Tell all of them."""
        for observer in self.each:
            if observer.first_chunk is not None:
                observer.first_chunk.run(self.access, self.request, self.state)

    def ended(self, end: ResponseEnd) -> None:
        """Tell all of them, also when one fails."""
        for observer in self.each:
            if observer.ended is not None:
                observer.ended.run(self.access, self.request, end, self.state)


def _add(answer: Mapping[object, object], added: dict[str, str], step: StartedStep) -> None:
    for name, value in answer.items():
        if isinstance(name, str) and isinstance(value, str):
            added[name] = value
        else:
            step.fault(f"wants header {name!r} set to {value!r}; names and values must be strings")
