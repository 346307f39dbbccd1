"""One plugin method of the request path, bound once with everything that a guarded, timed call of it needs.

The boundary around plugins has two forms, which promise the same. `Step.run` is a call of its own. Where each request passes, on its way to
the decision, the lines of `run` stand in place, and a `try` that nothing is raised in costs nothing:

    access.scope = step.scope
    try:
        answer = (step.ask if step.breaker.state else step.call)(request, endpoints)
        access.called.append((step, perf_counter()))
    except CALL_FAILURES as problem:
        answer = step.failed(problem, access)

A fault is that of `step`, whose turn it is. So is one of its answer, which may be of any class: what looks at it stands under a guard as
well. The clock is read once between two calls, so a call's time has in it the little that the host does before; where it does more,
`access.called` gets a moment without a step. `settle` counts all of it in one go.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from endpick.api.access import Access, AccessScope
from endpick.host.circuits import admitted, failed, late
from endpick.host.failures import CALL_FAILURES, FaultOfAnother, is_a, is_the_hosts, kind_of, message_of
from endpick.host.instance import Instance
from endpick.host.kinds import KINDS, ExtensionPoint, Kind, OnFault
from endpick.host.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Fault:
    """A plugin raised or returned something invalid; it has been counted and logged already."""

    instance: str
    problem: str
    refuses: bool
    """What the operator wants then: refuse the request, or go on as if the instance were not there."""

    def __str__(self) -> str:
        return f"plugin '{self.instance}' failed: {self.problem}"


class LeftOut(Exception):  # noqa: N818 - no error: what `Step.ask` says for a plugin that is not asked
    """The circuit of the instance is open."""


class Step:
    """A bound method, the instance it belongs to, and where its calls are reported: the boundary around plugins on the request path.

    What comes back is a plugin's word: an `object`, until the caller has looked at it.
    """

    __slots__ = ("breaker", "call", "extension_point", "instance", "scope", "telemetry", "timer")

    def __init__(self, call: Callable[..., object], instance: Instance, extension_point: ExtensionPoint, telemetry: Telemetry) -> None:
        self.call = call
        self.instance = instance
        declared = instance.scope
        self.scope = AccessScope(
            declared.instance, declared.readable, declared.writable, declared.plugin_type, extension_point.value, declared.max_ages
        )
        self.breaker = instance.breaker
        self.extension_point = extension_point
        self.telemetry = telemetry
        self.timer = telemetry.plugin_timer(extension_point, instance)

    def run(self, access: Access, *arguments: object) -> object:
        """Call the plugin: timed, confined to the data keys it declared, never raising, and not at all while its circuit is open.

        Returns:
            What the plugin returned; a `Fault` when it raised, or was left out.
        """
        breaker = self.breaker
        if breaker.state and not self.admitted():
            return self.left_out()
        access.scope = self.scope
        started = perf_counter()
        try:
            return self.call(*arguments)
        except FaultOfAnother as other:
            return other.fault
        except CALL_FAILURES as problem:
            if is_the_hosts(problem):
                raise
            return self.fault(problem)
        finally:
            seconds = perf_counter() - started
            access.scope = None
            # What `Distribution.observe` does, some times per request and without the call.
            timer = self.timer
            timer.counts[0 if seconds <= timer.lowest else bisect_left(timer.bounds, seconds)] += 1
            timer.total += seconds
            if seconds > breaker.budget_seconds:
                late(self.instance, self.extension_point, seconds, self.telemetry)

    def ask(self, *arguments: object) -> object:
        """Call the plugin of an instance whose circuit is not closed. Raises LeftOut when it lets no call through."""
        if not self.admitted():
            raise LeftOut
        return self.call(*arguments)

    def failed(self, problem: BaseException, access: Access) -> Fault:
        """What stands for the answer of a plugin out of which something was raised. What was not the plugin's goes on."""
        if is_a(problem, LeftOut) and self.breaker.state:
            return self.left_out()
        if is_the_hosts(problem):
            access.scope = None
            raise problem
        access.called.append((self, perf_counter()))
        if type(problem) is FaultOfAnother and type(problem.fault) is Fault:
            return problem.fault
        return self.fault(problem)

    def fault(self, problem: BaseException | str) -> Fault:
        """Report that the plugin failed; the fault says what its `onFault` asks for."""
        failed(self.instance, self.extension_point, problem, self.telemetry)
        text = f"{kind_of(problem)}: {message_of(problem)}" if isinstance(problem, BaseException) else problem
        return Fault(self.instance.name, text, self.instance.on_fault is OnFault.REFUSE)

    def held(self, seconds: float) -> None:
        """What the instance gave to await held the event loop for longer than it may, between two of its waits."""
        late(self.instance, self.extension_point, seconds, self.telemetry)

    def rendering_failed(self, problem: BaseException | str) -> None:
        """What the instance made failed later, in the midst of another plugin: count it, and refuse the request where `onFault` asks to.

        Raises:
            FaultOfAnother: the request is to be refused.
        """
        if isinstance(problem, BaseException) and (is_a(problem, FaultOfAnother) or is_the_hosts(problem)):
            raise problem
        fault = self.fault(problem)
        if fault.refuses:
            raise FaultOfAnother(fault)

    def admitted(self) -> bool:
        """Whether the circuit lets a call through; asked while it is not closed."""
        return admitted(self.instance, self.telemetry)

    def left_out(self) -> Fault:
        """What stands for the answer of an instance whose circuit is open."""
        self.telemetry.left_out(self.instance, self.extension_point)
        return Fault(self.instance.name, f"it is left out because {self.breaker.reason}", self.instance.on_fault is OnFault.REFUSE)


class SettlingStep(Step):
    """A method that settles what an earlier call began: it is called whatever the circuit says, so that no account stays open."""

    def admitted(self) -> bool:
        """True; the call is counted."""
        admitted(self.instance, self.telemetry)
        return True


def settle(access: Access) -> None:
    """Count what was called since the last time: how long each call took, and which of them took too long."""
    access.scope = None
    called = access.called
    access.called = []
    then = called[0][1] if called else 0.0
    for step, now in called:
        if step is not None:
            assert isinstance(step, Step)
            seconds = now - then
            timer = step.timer
            timer.counts[0 if seconds <= timer.lowest else bisect_left(timer.bounds, seconds)] += 1
            timer.total += seconds
            if seconds > step.breaker.budget_seconds:
                late(step.instance, step.extension_point, seconds, step.telemetry)
        then = now


def bind(instance: Instance, kind: Kind, method: str, telemetry: Telemetry) -> Step:
    """The step that calls a method which instances of a kind have.

    Raises:
        TypeError: the instance is not of this kind: a mistake in the plan.
    """
    if not isinstance(instance.plugin, kind):
        raise TypeError(f"{instance.origin} is not {KINDS[kind].title}")
    return Step(getattr(instance.plugin, method), instance, KINDS[kind].methods[method], telemetry)


def bind_wanted(instance: Instance, kind: Kind, method: str, telemetry: Telemetry) -> Step | None:
    """The step of a method that plugins may leave as it is; None for one that does, so that it costs nothing.

    Raises:
        TypeError: as `bind`.
    """
    step = bind(instance, kind, method, telemetry)
    return None if getattr(type(instance.plugin), method) is getattr(kind, method) else step


def bind_settling(instance: Instance, kind: Kind, method: str, telemetry: Telemetry) -> SettlingStep | None:
    """`bind_wanted`, of a method that settles.

    Raises:
        TypeError: as `bind`.
    """
    step = bind_wanted(instance, kind, method, telemetry)
    return None if step is None else SettlingStep(step.call, instance, step.extension_point, telemetry)
