"""A deployment: one plan brought to life, with whatever could be carried over from the one before."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from endpick.api.hooks import Document, HostServices
from endpick.api.plugin import PluginContext
from endpick.datalayer.table import EndpointTable
from endpick.observability.instruments import Instruments
from endpick.planning.build import Built, build_plan, carry_over
from endpick.planning.compile import compile_pipeline
from endpick.planning.plan import Plan, PlannedInstance
from endpick.plugins.build import instance_logger
from endpick.plugins.instance import Instance, scope_of
from endpick.requests.pipeline import Pipeline
from endpick.serve.failure import Refused
from endpick.serve.lifecycle import start_instances


@dataclass(frozen=True, slots=True)
class Ground:
    """What deployments stand on and pass on to one another."""

    services: HostServices
    table: EndpointTable
    instruments: Instruments
    watched: Callable[[Pipeline], Pipeline] = lambda pipeline: pipeline
    """Lets the observers of decisions see those of a pipeline."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """Started instances and the pipeline compiled from them.

    Attributes:
        plan: What was deployed.
        built: All instances by name.
        fresh: Those that this deployment built and started; the others came from the one before.
        pipeline: What requests begin with while this deployment is the current one.
    """

    plan: Plan
    built: Built
    fresh: tuple[Instance, ...]
    pipeline: Pipeline

    @property
    def instances(self) -> Mapping[str, Instance]:
        """All instances by name, in the order of the plan."""
        return self.built.instances


def document_of(plan: Plan) -> Document:
    """The configuration as it was written, for hook objects."""
    data = plan.config.source.data
    assert isinstance(data, Mapping), "a document that is no mapping has no plan"
    return data


async def deploy(plan: Plan, ground: Ground, previous: Deployment | None = None) -> Deployment:
    """Build and start what the plan needs and `previous` does not have already.

    An instance of the same name, type, origin and parameters is carried over, so that what it has learnt (a prefix index) survives.

    Raises:
        Refused: plugins would not be constructed, or one of them would not start; those started here have been stopped again.
    """
    carried = {} if previous is None else carry_over(previous.plan, previous.built, plan)
    built = build_plan(plan, lambda planned: _context(planned, ground), carried)
    if not isinstance(built, Built):
        raise Refused(*built)
    fresh = tuple(instance for instance in built.instances.values() if instance.name not in carried)
    await start_instances(fresh)
    return Deployment(plan, built, fresh, ground.watched(compile_pipeline(plan, built, ground.instruments)))


def left_behind(old: Deployment, new: Deployment) -> tuple[Instance, ...]:
    """Instances of `old` that `new` does not use any more."""
    kept = {id(instance.plugin) for instance in new.instances.values()}
    return tuple(instance for instance in old.instances.values() if id(instance.plugin) not in kept)


def _context(planned: PlannedInstance, ground: Ground) -> PluginContext:
    logger = instance_logger(planned.loaded, planned.name)
    columns = ground.table.writer(scope_of(planned.name, planned.subscriptions))
    return PluginContext(random.Random(), ground.services.clock, logger, CollectorRegistry(), columns)  # noqa: S311 - routing needs no secrets
