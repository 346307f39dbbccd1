"""The host's calls of plugins: contains errors, counts time, applies `onFault` and the circuit breaker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Generic, TypeVar, cast

from endpick.api.access import Access, AccessScope
from endpick.host.awaiting import call_awaited
from endpick.host.breaker import BreakerState
from endpick.host.failures import PLUGIN_ERRORS, FaultOfAnother, describe_error
from endpick.host.instance import Instance
from endpick.host.kinds import OnFault
from endpick.host.methods import Method
from endpick.host.telemetry import FaultRecord, Telemetry

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fault:
    """A plugin raised, answered something invalid, or was not called; counted and logged unless `uncounted`."""

    instance: str
    problem: str
    refuses: bool  # `onFault` refuses the request
    uncounted: BaseException | str | None = None  # the problem of a method that is not blamed: the caller reports it

    def __str__(self) -> str:
        return f"plugin '{self.instance}' failed: {self.problem}"


class Step(Generic[T]):
    """A method bound to its instance, data scope, circuit breaker and telemetry."""

    __slots__ = ("answers", "breaker", "call", "instance", "method", "scope", "telemetry", "timer")

    def __init__(self, call: Callable[..., object], instance: Instance, method: Method[T], telemetry: Telemetry) -> None:
        declared = instance.scope
        self.call = call
        self.instance = instance
        self.method = method
        self.answers = method.answers
        self.scope = AccessScope(
            declared.instance, declared.readable, declared.writable, declared.plugin_type, method.point.value, declared.max_ages
        )
        self.breaker = instance.breaker
        self.telemetry = telemetry
        self.timer = telemetry.plugin_timer(method.point, instance)

    def calling(self, call: Callable[..., object]) -> Step[T]:
        """Return the same step with another function in place of the method."""
        return Step(call, self.instance, self.method, self.telemetry)

    def run(self, access: Access, *arguments: object) -> T | Fault:
        """Call the plugin. Returns an answer of a valid type, or a `Fault`."""
        breaker = self.breaker
        if breaker.state and not self.admitted():
            return self.left_out()
        breaker.calls += 1
        caller, access.scope = access.scope, self.scope
        started = perf_counter()
        try:
            answer = self.call(*arguments)
        except FaultOfAnother as nested:
            return cast("Fault", nested.fault)
        except PLUGIN_ERRORS as error:
            return self.fault(error)
        finally:
            seconds = perf_counter() - started
            access.scope = caller
            self.timer.observe(seconds)
            if seconds > breaker.budget_seconds:
                self.held(seconds)
        if self.answers and not isinstance(answer, self.answers):
            return self.fault(self.method.complaint(answer))
        return cast("T", answer)

    def run_async(self, access: Access, timeout_seconds: float, *arguments: object) -> Awaitable[object]:
        """Call an async method like `run`. An answer after `timeout_seconds` is a `Fault`."""
        return call_awaited(self, access, timeout_seconds, arguments)

    def fault(self, problem: BaseException | str) -> Fault:
        """Report an error or an invalid answer, and return the fault."""
        text = describe_error(problem) if isinstance(problem, BaseException) else problem
        if not self.method.blames:
            return Fault(self.instance.name, text, False, problem)
        report_fault(self.instance, self.method.point, problem, self.telemetry)
        return Fault(self.instance.name, text, self.instance.on_fault is OnFault.REFUSE)

    def held(self, seconds: float) -> None:
        """Report a call that exceeded its time budget."""
        if self.method.has_budget:
            report_late(self.instance, self.method.point, seconds, self.telemetry)

    def admitted(self) -> bool:
        """Return True if the plugin may be called. Only needed while its circuit is not closed."""
        return admitted(self.instance, self.telemetry) or self.method.settles

    def left_out(self) -> Fault:
        """Return the fault of a plugin whose circuit is open, and count it."""
        self.telemetry.left_out(self.instance, self.method.point)
        return Fault(self.instance.name, f"it is left out because {self.breaker.reason}", self.instance.on_fault is OnFault.REFUSE)


def bind(instance: Instance, method: Method[T], telemetry: Telemetry) -> Step[T]:
    """Bind a method of an instance. Raises TypeError if the instance does not have it."""
    if not isinstance(instance.plugin, method.owner):
        raise TypeError(f"{instance.origin} is no {method.owner.__name__}")
    return Step(getattr(instance.plugin, method.name), instance, method, telemetry)


def bind_wanted(instance: Instance, method: Method[T], telemetry: Telemetry) -> Step[T] | None:
    """Bind a method like `bind`; returns None if the plugin does not override it."""
    step = bind(instance, method, telemetry)
    return None if getattr(type(instance.plugin), method.name) is getattr(method.owner, method.name) else step


def admitted(instance: Instance, telemetry: Telemetry) -> bool:
    """Return True if the circuit admits a call. Only needed while it is not closed."""
    before = instance.breaker.state
    admits = instance.breaker.admits()
    _report_change(instance, before, telemetry)
    return admits


def report_fault(instance: Instance, extension_point: str, problem: BaseException | str, telemetry: Telemetry) -> None:
    """Count, log and record an error or an invalid answer."""
    telemetry.fault(instance, extension_point, problem)
    if telemetry.listener is not None:
        text = describe_error(problem) if isinstance(problem, BaseException) else problem
        telemetry.listener.append(FaultRecord(instance.name, str(extension_point), text))
    before = instance.breaker.state
    instance.breaker.failed(skips=instance.on_fault is OnFault.SKIP)
    _report_change(instance, before, telemetry)


def report_late(instance: Instance, extension_point: str, seconds: float, telemetry: Telemetry) -> None:
    """Count a call that exceeded its time budget. Its answer is still used."""
    telemetry.late(instance, extension_point, seconds)
    before = instance.breaker.state
    instance.breaker.took(seconds)
    _report_change(instance, before, telemetry)


def _report_change(instance: Instance, before: BreakerState, telemetry: Telemetry) -> None:
    if instance.breaker.state is not before:
        telemetry.circuit_changed(instance, before)


def left_out_now(instances: Iterable[Instance]) -> tuple[str, ...]:
    """Return a sentence for each open circuit, for `/healthz`."""
    return tuple(
        f"{instance.origin} is left out for {instance.breaker.seconds_left:.1f} s more: {instance.breaker.reason}"
        for instance in instances
        if instance.breaker.state is BreakerState.OPEN
    )
