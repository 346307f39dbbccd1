"""What every boundary around plugins does with an instance's circuit breaker, reporting each change."""

from __future__ import annotations

from collections.abc import Iterable

from endpick.host.breaker import BreakerState
from endpick.host.instance import Instance
from endpick.host.kinds import OnFault
from endpick.host.telemetry import Telemetry


def admitted(instance: Instance, telemetry: Telemetry) -> bool:
    """Whether the circuit lets a call through; to be asked before each call while it is not closed."""
    before = instance.breaker.state
    admits = instance.breaker.admits()
    _report_change(instance, before, telemetry)
    return admits


def failed(instance: Instance, extension_point: str, problem: BaseException | str, telemetry: Telemetry) -> None:
    """A call raised, or answered something invalid."""
    telemetry.fault(instance, extension_point, problem)
    before = instance.breaker.state
    instance.breaker.failed(skipped=instance.on_fault is OnFault.SKIP)
    _report_change(instance, before, telemetry)


def late(instance: Instance, extension_point: str, seconds: float, telemetry: Telemetry) -> None:
    """A call held the event loop for longer than it may; what it answered counts all the same."""
    telemetry.late(instance, extension_point, seconds)
    before = instance.breaker.state
    instance.breaker.took(seconds)
    _report_change(instance, before, telemetry)


def _report_change(instance: Instance, before: BreakerState, telemetry: Telemetry) -> None:
    if instance.breaker.state is not before:
        telemetry.circuit_changed(instance, before)


def left_out_now(instances: Iterable[Instance]) -> tuple[str, ...]:
    """A sentence for each instance that is left out at this moment."""
    return tuple(
        f"{instance.origin} is left out for {instance.breaker.seconds_left:.1f} s more: {instance.breaker.reason}"
        for instance in instances
        if instance.breaker.state is BreakerState.OPEN
    )
