"""A director with a real pool and real plugins, and what a gateway would hand it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from random import Random

from endpick.api import (
    Admitter,
    CandidateFilter,
    DataProducer,
    InferenceRequest,
    Parser,
    PreRequest,
    RequestHeaderProcessor,
    Responder,
    ResponseObserver,
    SaturationDetector,
)
from endpick.data.table import EndpointTable
from endpick.host.instance import Instance
from endpick.host.kinds import OnFault
from endpick.requests.director import Director
from endpick.requests.memory import Memory
from endpick.requests.model import BodyModes, IncomingRequest, Refused, Routed
from endpick.requests.pipeline import compile_pipeline
from endpick.requests.record import DecisionRecord, Why
from endpick.scheduling.scheduler import compile_profile, compile_scheduler
from endpick_builtin.handlers.profiles import SingleProfileHandler
from endpick_builtin.parsers.openai import OpenAIParser, PassthroughParser
from endpick_builtin.pickers import MaxScorePicker
from unit.scheduling.workbench import Recording, instance, plugin_of, pool

EVERYTHING = BodyModes()
JSON_OK = {":status": "200", "content-type": "application/json"}
KIND_OF = {
    "responders": Responder,
    "header_processors": RequestHeaderProcessor,
    "candidate_filters": CandidateFilter,
    "producers": DataProducer,
    "admitters": Admitter,
    "pre_request": PreRequest,
    "observers": ResponseObserver,
}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


class Stage:
    """One director; its instruments, clock and pool can be looked at and moved."""

    def __init__(
        self,
        *,
        table: EndpointTable | None = None,
        parsers: Sequence[Instance] | None = None,
        filters: Sequence[Instance] = (),
        scorers: Sequence[tuple[Instance, float]] = (),
        picker: Instance | None = None,
        random: Random | None = None,
        objectives: Mapping[str, int] | None = None,
        detector: Instance | None = None,
        memory: Memory | None = None,
        propagates_priority: bool = False,
        records: bool = False,
        **groups: Sequence[Instance],
    ) -> None:
        self.telemetry = Recording()
        self.table = table or pool()
        self.now = 100.0
        profile = compile_profile("default", filters, scorers, picker or instance(MaxScorePicker), self.telemetry)
        scheduler = compile_scheduler(instance(SingleProfileHandler), {"default": profile}, self.telemetry)
        parsers = (
            [instance(OpenAIParser, "openai-parser"), instance(PassthroughParser, "passthrough-parser")] if parsers is None else parsers
        )
        self.pipeline = compile_pipeline(
            scheduler=scheduler,
            parsers=parsers,
            detector=detector,
            on_request={KIND_OF[group]: instances for group, instances in groups.items()},
            objectives=objectives,
            propagates_priority=propagates_priority,
            telemetry=self.telemetry,
        )
        self.director = Director(
            self.pipeline,
            self.table,
            self.telemetry,
            lambda: self.now,
            random=random,
            sent=self.table.sent,
            rules=self.table.rules,
            memory=memory,
            decisions=self if records else None,
        )
        self.records: list[DecisionRecord] = []

    def begin(self, request: InferenceRequest, plan: str) -> DecisionRecord:
        """See `DecisionLog`: every decision is recorded."""
        return DecisionRecord.of(request, plan, Why.SAMPLED)

    def finish(self, record: DecisionRecord) -> None:
        """See `DecisionLog`."""
        self.records.append(record)

    def decide(self, body: object = CHAT, path: str = "/v1/chat/completions", subset=None, body_modes=None, method="POST", **headers: str):
        """The decision about a request; header names are written with underscores."""
        sent = {":path": path, ":method": method} | {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        return self.director.decide(IncomingRequest(sent, content, subset, self.now, body_modes or EVERYTHING))

    def route(self, *arguments, **keywords) -> Routed:
        """The same, when nothing else will do."""
        decision = self.decide(*arguments, **keywords)
        assert isinstance(decision, Routed), decision
        return decision

    def refuse(self, *arguments, **keywords) -> Refused:
        """The same for refusals."""
        decision = self.decide(*arguments, **keywords)
        assert isinstance(decision, Refused), decision
        return decision


def header_processor_of(function: Callable, name: str = "headers", on_fault: OnFault | None = None) -> Instance:
    return plugin_of(RequestHeaderProcessor, name, on_fault, request_headers=function)


def candidate_filter_of(function: Callable, name: str = "candidate-filter", on_fault: OnFault | None = None) -> Instance:
    return plugin_of(CandidateFilter, name, on_fault, filter_candidates=lambda request, endpoints: function(endpoints))


def admitter_of(function: Callable, name: str = "admitter", on_fault: OnFault | None = None) -> Instance:
    return plugin_of(Admitter, name, on_fault, admit=lambda request, endpoints, state: function(request))


def detector_of(saturation: float | Callable, on_fault: OnFault | None = None) -> Instance:
    return plugin_of(
        SaturationDetector,
        "detector",
        on_fault,
        saturation=saturation if callable(saturation) else lambda endpoints: saturation if len(endpoints) else 1.0,
    )


def producer_of(function: Callable, name: str = "producer", on_fault: OnFault | None = None, timeout_seconds: float = 0.4) -> Instance:
    built = plugin_of(DataProducer, name, on_fault, produce=function)
    built.plugin.timeout_seconds = timeout_seconds
    return built


def async_producer_of(
    function: Callable, name: str = "producer", on_fault: OnFault | None = None, timeout_seconds: float = 0.4
) -> Instance:
    """One whose `produce` is an `async def`."""

    class Waiting(DataProducer):
        async def produce(self, request, endpoints, state):
            await function(request, endpoints, state)

    built = instance(Waiting, name, on_fault=on_fault)
    built.plugin.timeout_seconds = timeout_seconds
    return built


def before_request_of(function: Callable, name: str = "before", on_fault: OnFault | None = None) -> Instance:
    return plugin_of(PreRequest, name, on_fault, before_request=lambda request, result, headers, state: function(request, result, headers))


def observer_of(name: str = "observer", **methods: Callable) -> Instance:
    return plugin_of(ResponseObserver, name, **methods)


def parser_of(name: str, claims: tuple[str, ...] = (), on_fault: OnFault | None = None, **methods: Callable) -> Instance:
    built = plugin_of(Parser, name, on_fault, **methods)
    type(built.plugin).claims = claims
    return built


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """The data, cut at these places and nowhere else."""
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(edges)]
