"""The plugin methods that the host calls, with the metric label and the valid answers of each."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final, Generic, TypeVar

import numpy as np

from endpick.api import (
    Admitter,
    CandidateFilter,
    DataCollector,
    DataProducer,
    DisaggregationDecider,
    Endpoints,
    Filter,
    Parser,
    Picker,
    Plugin,
    PreRequest,
    ProfileHandler,
    RequestHeaderProcessor,
    Responder,
    ResponseObserver,
    SaturationDetector,
    Scorer,
)
from endpick.api.datalayer import EndpointEventSource, PollingPoolSource, PollingSource
from endpick.api.endpoints import BoolArray, FloatArray
from endpick.api.fleet import LearntState
from endpick.api.flow_control import EvictionFilter, EvictionOrderingPolicy, FairnessPolicy, OrderingPolicy, SortKey, UsageLimitPolicy
from endpick.api.request import DirectResponse, ParsedRequest, Rejection, Usage
from endpick.api.scheduling import SchedulingResult

T = TypeVar("T")


class ExtensionPoint(enum.StrEnum):
    """The `extension_point` label of metrics, as in llm-d if it has the point."""

    REQUEST_PARSING = "RequestParsing"
    RESPONDER = "Responder"
    REQUEST_HEADERS = "RequestHeader"
    FAIRNESS_POLICY = "FairnessPolicy"
    ORDERING_POLICY = "OrderingPolicy"
    USAGE_LIMIT_POLICY = "UsageLimitPolicy"
    CANDIDATE_FILTER = "Screener"
    DATA_PRODUCER = "DataProducer"
    ADMISSION = "Admission"
    PROFILE_PICKER = "ProfilePicker"
    DISAGGREGATION_DECIDER = "DisaggregationDecider"
    FILTER = "Filter"
    SCORER = "Scorer"
    PICKER = "Picker"
    PROCESS_PROFILES_RESULTS = "ProcessProfilesResults"
    PRE_REQUEST = "PreRequest"
    EVICTION_FILTER = "EvictionFilter"
    EVICTION_ORDERING_POLICY = "EvictionOrderingPolicy"
    RESPONSE_PARSING = "ResponseParsing"
    RESPONSE_RECEIVED = "ResponseReceived"
    RESPONSE_STREAMING = "ResponseStreaming"
    RESPONSE_COMPLETE = "ResponseComplete"
    ENDPOINT_DISCOVERY = "EndpointDiscovery"
    ENDPOINT_REMOVED = "EndpointRemoved"
    METRICS = "Metrics"
    COLLECTION = "Collection"
    EXCHANGE = "Exchange"


@dataclass(frozen=True, slots=True)
class Method(Generic[T]):
    """A method that the host calls.

    Attributes:
        owner: The class in `endpick.api` that declares it.
        answers: The types of a valid answer, and how messages call them; an empty tuple if the host ignores the answer.
        settles: The host calls it even while the circuit is open, because it ends an earlier call.
        has_budget: False if its duration depends on the size of a body.
        blames: False if an error is about one endpoint: the caller reports it, and it does not open the circuit.
    """

    owner: type[Any]
    name: str
    point: ExtensionPoint
    answers: tuple[type[Any], ...] = ()
    noun: str = ""
    settles: bool = False
    has_budget: bool = True
    blames: bool = True

    def complaint(self, answer: object) -> str:
        """Return the message about an answer of another type; empty for a valid answer."""
        return f"answered {type(answer).__name__}, not {self.noun}" if self.answers and not isinstance(answer, self.answers) else ""


_At = ExtensionPoint
_REJECTION: Final = ((NoneType, Rejection), "a Rejection or None")
_MASK: Final = ((np.ndarray, Endpoints), "a mask or Endpoints")
_BODY: Final = ((bytes,), "the bytes of a body")
_NUMBERS: Final = ((tuple,), "a tuple of numbers")

FILTER: Final[Method[BoolArray | Endpoints]] = Method(Filter, "filter", _At.FILTER, *_MASK)
SCORE: Final[Method[FloatArray]] = Method(Scorer, "score", _At.SCORER, (np.ndarray,), "an array of scores")
PICK: Final[Method[Endpoints]] = Method(Picker, "pick", _At.PICKER, (Endpoints,), "Endpoints")
PICK_PROFILES: Final[Method[Sequence[object]]] = Method(  # of names, if the plugin is right
    ProfileHandler, "pick_profiles", _At.PROFILE_PICKER, (tuple, list), "a sequence of profile names"
)
PROCESS_RESULTS: Final[Method[SchedulingResult]] = Method(
    ProfileHandler, "process_results", _At.PROCESS_PROFILES_RESULTS, (SchedulingResult,), "a SchedulingResult"
)
DISAGGREGATE: Final[Method[bool]] = Method(DisaggregationDecider, "disaggregate", _At.DISAGGREGATION_DECIDER, (bool, np.bool_), "a bool")
PRODUCE: Final[Method[object]] = Method(DataProducer, "produce", _At.DATA_PRODUCER)
RESPOND: Final[Method[DirectResponse | None]] = Method(
    Responder, "respond", _At.RESPONDER, (NoneType, DirectResponse), "a DirectResponse or None"
)
REQUEST_HEADERS: Final[Method[Rejection | None]] = Method(RequestHeaderProcessor, "request_headers", _At.REQUEST_HEADERS, *_REJECTION)
FILTER_CANDIDATES: Final[Method[BoolArray | Endpoints]] = Method(CandidateFilter, "filter_candidates", _At.CANDIDATE_FILTER, *_MASK)
ADMIT: Final[Method[Rejection | None]] = Method(Admitter, "admit", _At.ADMISSION, *_REJECTION)
BEFORE_REQUEST: Final[Method[Rejection | DirectResponse | None]] = Method(
    PreRequest, "before_request", _At.PRE_REQUEST, (NoneType, Rejection, DirectResponse), "a Rejection or None"
)
RESPONSE_STARTED: Final[Method[object]] = Method(ResponseObserver, "response_started", _At.RESPONSE_RECEIVED, settles=True)
FIRST_CHUNK: Final[Method[object]] = Method(ResponseObserver, "first_chunk", _At.RESPONSE_STREAMING, settles=True)
RESPONSE_METADATA: Final[Method[object]] = Method(ResponseObserver, "response_metadata", _At.RESPONSE_COMPLETE, settles=True)
RESPONSE_ENDED: Final[Method[object]] = Method(ResponseObserver, "response_ended", _At.RESPONSE_COMPLETE, settles=True)
PARSE: Final[Method[ParsedRequest | Rejection]] = Method(
    Parser, "parse", _At.REQUEST_PARSING, (ParsedRequest, Rejection), "a ParsedRequest or Rejection"
)
PARSE_LARGE: Final[Method[ParsedRequest | Rejection]] = Method(
    Parser, "parse", _At.REQUEST_PARSING, PARSE.answers, PARSE.noun, has_budget=False
)
REWRITE_MODEL: Final[Method[bytes]] = Method(Parser, "rewrite_model", _At.REQUEST_PARSING, *_BODY, has_budget=False)
REWRITE_PRIORITY: Final[Method[bytes]] = Method(Parser, "rewrite_priority", _At.REQUEST_PARSING, *_BODY, has_budget=False)
USAGE: Final[Method[Usage | None]] = Method(Parser, "usage", _At.RESPONSE_PARSING, (NoneType, Usage), "Usage or None")
SATURATION: Final[Method[float]] = Method(
    SaturationDetector, "saturation", _At.ADMISSION, (float, int, np.floating, np.integer), "a number"
)
CHOOSE: Final[Method[object]] = Method(FairnessPolicy, "choose", _At.FAIRNESS_POLICY)
FLOW_CHANGED: Final[Method[object]] = Method(FairnessPolicy, "flow_changed", _At.FAIRNESS_POLICY)
DISPATCHED: Final[Method[object]] = Method(FairnessPolicy, "dispatched", _At.FAIRNESS_POLICY)
SORT_KEY: Final[Method[SortKey]] = Method(OrderingPolicy, "sort_key", _At.ORDERING_POLICY, *_NUMBERS)
CEILINGS: Final[Method[Sequence[float]]] = Method(
    UsageLimitPolicy, "ceilings", _At.USAGE_LIMIT_POLICY, (list, tuple), "a number for each priority"
)
IS_EVICTABLE: Final[Method[bool]] = Method(EvictionFilter, "is_evictable", _At.EVICTION_FILTER, (bool,), "a boolean")
EVICTION_SORT_KEY: Final[Method[SortKey]] = Method(EvictionOrderingPolicy, "sort_key", _At.EVICTION_ORDERING_POLICY, *_NUMBERS)
COLLECT: Final[Method[object]] = Method(DataCollector, "collect", _At.COLLECTION, blames=False)
POLL: Final[Method[object]] = Method(PollingSource, "poll", _At.COLLECTION, blames=False)
POLL_POOL: Final[Method[object]] = Method(PollingPoolSource, "poll_pool", _At.COLLECTION, blames=False)
NOTIFY: Final[Method[object]] = Method(EndpointEventSource, "notify", _At.COLLECTION, blames=False)

# Of several kinds.
ENDPOINT_REMOVED: Final[Method[object]] = Method(Plugin, "endpoint_removed", _At.ENDPOINT_REMOVED, settles=True)
SNAPSHOT: Final[Method[object]] = Method(LearntState, "snapshot", _At.EXCHANGE, settles=True)
RESTORE: Final[Method[object]] = Method(LearntState, "restore", _At.EXCHANGE, settles=True)
DRAIN_DELTAS: Final[Method[object]] = Method(LearntState, "drain_deltas", _At.EXCHANGE, settles=True)
APPLY: Final[Method[object]] = Method(LearntState, "apply", _At.EXCHANGE, settles=True)
ORIGIN_GONE: Final[Method[object]] = Method(LearntState, "origin_gone", _At.EXCHANGE, settles=True)
