"""A plugin of each kind, and a hook object, that do right until `misdeeds` tells one of them to do something else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import numpy as np
from prometheus_client.registry import Collector
from pydantic import field_validator

from endpick.api import (
    Admitter,
    CandidateFilter,
    DataCollector,
    DataKey,
    DataProducer,
    DisaggregationDecider,
    EndpointDiscovery,
    EndpointEventSource,
    EvictionFilter,
    EvictionOrderingPolicy,
    FairnessPolicy,
    Filter,
    OrderingPolicy,
    Parameters,
    Picker,
    PollingPoolSource,
    PollingSource,
    PoolSource,
    PreRequest,
    RefersTo,
    RequestHeaderProcessor,
    ResponseObserver,
    SaturationDetector,
    Scope,
    Scorer,
    StreamSource,
    Subscriptions,
    UsageLimitPolicy,
    hookimpl,
)
from endpick_builtin.handlers.single_profile import OneRunHandler
from endpick_builtin.parsers.openai import OpenAIParser

from .misdeeds import act

HEAT = DataKey("culprit/heat", float)
PRICE = DataKey("culprit/price", float, Scope.POOL)
NOTE = DataKey("culprit/note", str, Scope.REQUEST)
SHARE = DataKey("culprit/share", float, Scope.CANDIDATE)


class Salt(Parameters):
    """Another salt makes another instance at the next reload."""

    salt: int = 0

    @field_validator("salt")
    @classmethod
    def tasted(cls, value: int) -> object:
        """Validators are code of the plugin as well."""
        return act("build.validator", lambda: value)


class Samples(Collector):
    """What a plugin registers may answer scrapes as it likes."""

    def collect(self) -> object:
        return act("metrics.collect", lambda: ())

    def describe(self) -> object:
        return ()


class Culprit:
    """What every kind has beside its methods."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        act("build.constructor", lambda: None)
        if isinstance(self, PreRequest):
            self.context.registry.register(Samples())

    @classmethod
    def subscriptions(cls, parameters: Salt) -> object:
        return act("build.subscriptions", lambda: Subscriptions(cls.consumes, cls.consumes_optional, cls.produces))

    async def start(self) -> object:
        return act("build.start", lambda: None)

    async def stop(self) -> object:
        return act("build.stop", lambda: None)

    def learnt_bytes(self) -> object:
        return act("life.learnt", lambda: 30_000_000 if isinstance(self, PreRequest) else 0)

    def forget_some(self) -> object:
        return act("life.forget", lambda: True)


class Sieve(Culprit, Filter[Salt]):
    def filter(self, request, endpoints, state):
        return act("filter.filter", lambda: np.ones(len(endpoints), dtype=np.bool_))


class Judge(Culprit, Scorer[Salt]):
    consumes_optional = (HEAT, PRICE, NOTE, SHARE)

    def score(self, request, endpoints, state):
        list(request.prompt.texts)
        endpoints[HEAT]
        state.get(NOTE)
        state.column(SHARE, endpoints)
        return act("scorer.score", lambda: np.ones(len(endpoints)))


class Hand(Culprit, Picker[Salt]):
    def pick(self, request, scored, state):
        return act("picker.pick", lambda: scored.take([len(scored.scores) - 1]))


class Doubt(Culprit, DisaggregationDecider[Salt]):
    def disaggregate(self, request, endpoint, state):
        return act("decider.disaggregate", lambda: False)


class Advised(Salt):
    """Whom the handler asks."""

    advisor: Annotated[str, RefersTo(DisaggregationDecider)] = "culprit.doubt"


class Head(Culprit, OneRunHandler[Advised]):
    def __init__(self, name, parameters, context):
        super().__init__(name, parameters, context)
        self.advisor = context.instance(parameters.advisor, DisaggregationDecider)

    def pick_profiles(self, request, profiles, results, state):
        return act("handler.pick", lambda: () if results else profiles)

    def process_results(self, request, results, state):
        ((_, run),) = results.items()
        if run.picked is not None:
            self.advisor.disaggregate(request, run.picked, state)
        return act("handler.process", lambda: OneRunHandler.process_results(self, request, results, state))


class Gate(Culprit, RequestHeaderProcessor[Salt]):
    def request_headers(self, request, state):
        return act("headers.process", lambda: None)


class Screen(Culprit, CandidateFilter[Salt]):
    def filter_candidates(self, request, endpoints):
        return act("screener.filter", lambda: np.ones(len(endpoints), dtype=np.bool_))


class Maker(Culprit, DataProducer[Salt]):
    produces = (NOTE,)

    def produce(self, request, endpoints, state):
        state.put(NOTE, request.id)
        state.put(NOTE, act("producer.put", lambda: "x"))
        return act("producer.produce", lambda: None)


class Waiter(Culprit, DataProducer[Salt]):
    produces = (SHARE,)
    timeout_seconds = 0.2

    async def produce(self, request, endpoints, state):
        await asyncio.sleep(0)
        state.put_column(SHARE, endpoints, act("waiter.put", lambda: np.ones(len(endpoints))))
        return act("waiter.produce", lambda: None)


class Door(Culprit, Admitter[Salt]):
    def admit(self, request, endpoints, state):
        return act("admitter.admit", lambda: None)


class Mark(Culprit, PreRequest[Salt]):
    def endpoint_removed(self, name):
        return act("life.removed", lambda: None)

    def before_request(self, request, result, headers, state):
        headers.set("x-mark", act("prerequest.header", lambda: "m"))
        headers.set_metadata("m", "k", act("prerequest.metadata", lambda: 1.0))
        return act("prerequest.before", lambda: None)


class Eye(Culprit, ResponseObserver[Salt]):
    def response_started(self, request, head, state):
        return act("observer.started", lambda: {"x-seen": "1"})

    def first_chunk(self, request, state):
        return act("observer.chunk", lambda: None)

    def response_metadata(self, request, usage, state):
        return act("observer.metadata", lambda: {"m": {"k": 1.0}})

    def response_ended(self, request, end, state):
        return act("observer.ended", lambda: None)


class Reader(Culprit, OpenAIParser):
    def parse(self, path, headers, body):
        return act("parser.parse", lambda: OpenAIParser.parse(self, path, headers, body))

    def rewrite_model(self, body, parsed, model):
        return act("parser.rewrite", lambda: OpenAIParser.rewrite_model(self, body, parsed, model))

    def usage(self, body, streaming):
        return act("parser.usage", lambda: OpenAIParser.usage(self, body, streaming))


class Gauge(Culprit, SaturationDetector[Salt]):
    def saturation(self, endpoints):
        return act("detector.saturation", lambda: 2.0 if time.monotonic() % 0.1 < 0.03 else 0.0)


class Fair(Culprit, FairnessPolicy[Salt]):
    def choose(self, band):
        return act("fairness.choose", lambda: next(iter(band.flows)))

    def flow_changed(self, band, flow):
        return act("fairness.changed", lambda: None)

    def dispatched(self, band, flow, waiting):
        return act("fairness.dispatched", lambda: None)


class Order(Culprit, OrderingPolicy[Salt]):
    def sort_key(self, waiting):
        return act("ordering.key", tuple)


class Ceiling(Culprit, UsageLimitPolicy[Salt]):
    def ceilings(self, saturation, priorities: Sequence[int]):
        return act("usage.ceilings", lambda: [1.0] * len(priorities))


class Victims(Culprit, EvictionFilter[Salt]):
    def is_evictable(self, dispatched):
        return act("eviction.evictable", lambda: True)


class Turn(Culprit, EvictionOrderingPolicy[Salt]):
    def sort_key(self, dispatched):
        return act("eviction.key", lambda: (1,))


class Asker(Culprit, PollingSource[Salt, object]):
    interval_seconds = 0.1

    async def poll(self, endpoint):
        return act("source.poll", lambda: 1.0)


class Stream(Culprit, StreamSource[Salt, object]):
    async def watch(self, endpoint, publish: Callable[[object], None]):
        while True:
            publish(act("source.watch", lambda: 1.0))
            await asyncio.sleep(0.1)


class PoolAsker(Culprit, PollingPoolSource[Salt, object]):
    interval_seconds = 0.05

    async def poll_pool(self):
        return act("source.poll-pool", lambda: 1.0)


class PoolStream(Culprit, PoolSource[Salt, object]):
    async def watch_pool(self, publish):
        while True:
            publish(act("source.watch-pool", lambda: 1.0))
            await asyncio.sleep(0.05)


class Events(Culprit, EndpointEventSource[Salt, object]):
    def notify(self, event):
        return act("source.notify", lambda: 1.0)


class Writer(Culprit, DataCollector[Salt, object]):
    produces = (HEAT, PRICE)

    def collect(self, payload, writer):
        act("collector.collect", lambda: None)
        if writer.endpoint is not None:
            writer.set(HEAT, act("collector.set", lambda: 1.0))
        else:
            writer.set_pool(PRICE, act("collector.set-pool", lambda: 1.0))


class Finder(Culprit, EndpointDiscovery[Salt]):
    async def run(self, registry):
        from .finding import endpoints, report

        registry.replace_all(endpoints())
        registry.ready()
        while True:
            await asyncio.sleep(0.02)
            report(registry)
            act("discovery.run", lambda: None)


class Hooks:
    """Each hook that is called while a picker serves."""

    @hookimpl
    def endpick_register(self):
        return act("hooks.register", dict)

    @hookimpl
    def endpick_plugin_loaded(self, record):
        return act("hooks.loaded", lambda: None)

    @hookimpl
    def endpick_validate(self, config: Mapping[str, object], report):
        found = act("hooks.validate", lambda: None)
        if found is not None:
            report.warn((found,), found, found)

    @hookimpl
    def endpick_config_reload(self, old, new):
        return act("hooks.reload", lambda: None)

    @hookimpl
    def endpick_shutdown(self, host):
        return act("hooks.shutdown", lambda: None)

    @hookimpl
    def endpick_decision(self, record):
        return act("hooks.decision", lambda: None)
