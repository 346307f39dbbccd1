"""Compiles built instances: from a plan and its objects to what the request path and the data layer run."""

from __future__ import annotations

from collections.abc import Iterable

from endpick.api.data import AnyKey
from endpick.datalayer.collection import Collection, SourceBinding
from endpick.observability.instruments import Instruments
from endpick.planning.build import Built
from endpick.planning.plan import Plan
from endpick.plugins.instance import Instance
from endpick.requests import pipeline
from endpick.requests.pipeline import Pipeline
from endpick.scheduling.profile import Profile, compile_profile
from endpick.scheduling.scheduler import compile_scheduler


def compile_pipeline(plan: Plan, built: Built, instruments: Instruments) -> Pipeline:
    """Everything a request meets, bound once."""
    instances = built.instances

    def named(names: Iterable[str]) -> list[Instance]:
        return [instances[name] for name in names]

    return pipeline.compile_pipeline(
        scheduler=compile_scheduler(instances[plan.handler], compile_profiles(plan, built, instruments), instruments),
        parsers=named(plan.parsers),
        detector=None if plan.detector is None else instances[plan.detector],
        screeners=named(plan.screeners),
        producers=named(plan.producers),
        admitters=named(plan.admitters),
        pre_request=named(plan.pre_request),
        observers=named(plan.response_observers),
        instruments=instruments,
    )


def compile_profiles(plan: Plan, built: Built, instruments: Instruments) -> dict[str, Profile]:
    """The scheduling profiles by name, in the order of the document."""
    instances = built.instances
    return {
        profile.name: compile_profile(
            profile.name,
            [instances[name] for name in profile.filters],
            [(instances[scorer.instance], scorer.weight) for scorer in profile.scorers],
            instances[profile.picker],
            instruments,
        )
        for profile in plan.profiles
    }


def compile_collection(plan: Plan, built: Built) -> Collection:
    """What is collected: each source with those of its collectors that somebody reads; sources without any are left out."""
    instances = built.instances
    return Collection(
        tuple(
            SourceBinding(instances[source.instance], tuple(instances[name] for name in source.active))
            for source in plan.sources
            if source.active
        )
    )


def declared_keys(plan: Plan) -> tuple[AnyKey, ...]:
    """Every data key that some instance writes, each once, sorted by name: the columns of the endpoint table."""
    keys = {key.name: key for instance in plan.instances for key in instance.subscriptions.produces}
    return tuple(keys[name] for name in sorted(keys))
