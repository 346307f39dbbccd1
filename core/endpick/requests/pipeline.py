"""The pipeline: every plugin of one plan that a request meets, bound once. A reload makes a second one and swaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from endpick.observability.instruments import Instruments
from endpick.plugins.instance import Instance
from endpick.requests.admission import AdmitStep, SaturationStep, admit_step, saturation_step
from endpick.requests.dispatching import PreRequestStep, pre_request_step
from endpick.requests.observing import CompiledObserver, compile_observer
from endpick.requests.parsing import Parsers, compile_parsers
from endpick.requests.producing import CompiledProducer, compile_producer
from endpick.requests.screening import ScreenStep, screen_step
from endpick.scheduling.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What the director calls, in the order of the fields."""

    parsers: Parsers
    detector: SaturationStep | None
    screeners: tuple[ScreenStep, ...]
    producers: tuple[CompiledProducer, ...]
    admitters: tuple[AdmitStep, ...]
    scheduler: Scheduler
    pre_request: tuple[PreRequestStep, ...]
    observers: tuple[CompiledObserver, ...]


def compile_pipeline(
    *,
    scheduler: Scheduler,
    parsers: Sequence[Instance],
    detector: Instance | None = None,
    screeners: Sequence[Instance] = (),
    producers: Sequence[Instance] = (),
    admitters: Sequence[Instance] = (),
    pre_request: Sequence[Instance] = (),
    observers: Sequence[Instance] = (),
    instruments: Instruments,
) -> Pipeline:
    """Bind the instances, each group in the order in which it is to be called.

    Raises:
        TypeError: an instance is not of the kind its place needs: a mistake in the plan.
    """
    return Pipeline(
        compile_parsers(parsers, instruments),
        None if detector is None else saturation_step(detector, instruments),
        tuple(screen_step(each, instruments) for each in screeners),
        tuple(compile_producer(each, instruments) for each in producers),
        tuple(admit_step(each, instruments) for each in admitters),
        scheduler,
        tuple(pre_request_step(each, instruments) for each in pre_request),
        tuple(compile_observer(each, instruments) for each in observers),
    )
