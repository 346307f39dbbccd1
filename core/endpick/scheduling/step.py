"""One plugin method of the request path, bound once with everything that a guarded, timed call of it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter
from typing import Generic, ParamSpec, TypeVar

from endpick.api.access import Access, AccessScope
from endpick.observability.instruments import Instruments
from endpick.plugins.instance import Instance, OnFault

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


class ExtensionPoint(StrEnum):
    """Where on the request path a plugin was called: the label of its metrics."""

    REQUEST_PARSING = "RequestParsing"
    SCREENER = "Screener"
    DATA_PRODUCER = "DataProducer"
    ADMISSION = "Admission"
    PROFILE_PICKER = "ProfilePicker"
    FILTER = "Filter"
    SCORER = "Scorer"
    PICKER = "Picker"
    PROCESS_PROFILES_RESULTS = "ProcessProfilesResults"
    PRE_REQUEST = "PreRequest"
    RESPONSE_PARSING = "ResponseParsing"
    RESPONSE_RECEIVED = "ResponseReceived"
    RESPONSE_STREAMING = "ResponseStreaming"
    RESPONSE_COMPLETE = "ResponseComplete"


@dataclass(frozen=True, slots=True)
class Fault:
    """A plugin raised or answered nonsense; it has been counted and logged already."""

    instance: str
    problem: str
    refuses: bool
    """What the operator wants then: refuse the request, or go on as if the instance were not there."""

    def __str__(self) -> str:
        return f"plugin '{self.instance}' failed: {self.problem}"


@dataclass(frozen=True, slots=True)
class Step(Generic[Arguments, Answer]):
    """A bound method, who it belongs to, and where its calls are reported.

    What comes back is a plugin's word: an `object`, until whoever asked has looked at it.
    """

    call: Callable[Arguments, Answer]
    instance: Instance
    extension_point: ExtensionPoint
    scope: AccessScope
    record: Callable[[float], None]
    instruments: Instruments

    def run(self, access: Access, *arguments: Arguments.args, **keywords: Arguments.kwargs) -> Answer | Fault:
        """Call the plugin: timed, confined to the data keys it declared, and never raising.

        `SystemExit` is caught as well: a plugin that calls `sys.exit` must not take the process with it.
        """
        access.scope = self.scope
        started = perf_counter()
        try:
            return self.call(*arguments, **keywords)
        except (Exception, SystemExit) as problem:
            return self.fault(problem)
        finally:
            access.scope = None
            self.record(perf_counter() - started)

    def fault(self, problem: BaseException | str) -> Fault:
        """Report that the plugin failed, in the words of the operator's `onFault`."""
        self.instruments.fault(self.instance, self.extension_point, problem)
        text = problem if isinstance(problem, str) else f"{type(problem).__name__}: {problem}"
        return Fault(self.instance.name, text, self.instance.on_fault is OnFault.REFUSE)


def wrong_kind(instance: Instance, kind: str) -> TypeError:
    """What compiling raises when a plan puts an instance where it cannot be called."""
    return TypeError(f"{instance.origin} is not a {kind}")


def bind(
    call: Callable[Arguments, Answer], instance: Instance, extension_point: ExtensionPoint, instruments: Instruments
) -> Step[Arguments, Answer]:
    """The step that calls this method of the instance."""
    record = instruments.plugin_timer(extension_point, instance)
    return Step(call, instance, extension_point, instance.scope, record, instruments)
