"""The table of kinds: every fact the host needs about a kind of plugin.

A new kind is a class in `endpick.api`, a row in `KINDS`, and the code that calls it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias, get_origin

from pydantic import WithJsonSchema

from endpick.api import (
    Admitter,
    CandidateFilter,
    DataCollector,
    DataProducer,
    DataSource,
    DisaggregationDecider,
    EndpointDiscovery,
    EvictionFilter,
    EvictionOrderingPolicy,
    FairnessPolicy,
    Filter,
    OrderingPolicy,
    Parameters,
    Parser,
    Picker,
    Plugin,
    PreRequest,
    ProfileHandler,
    RequestHeaderProcessor,
    ResponseObserver,
    SaturationDetector,
    Scorer,
    UsageLimitPolicy,
)
from endpick.api.plugin import generic_arguments

Kind: TypeAlias = type[Plugin[Any]]
"""A kind is a class in `endpick.api`; `Kind.kind` is its name for operators."""


class OnFault(enum.StrEnum):
    """How the host treats a request when an instance raises or returns something invalid."""

    SKIP = "skip"
    """Continue without the instance."""
    REFUSE = "refuse"


class Layer(enum.IntEnum):
    """Stages of a request, in order. Data flows from earlier layers to later ones only."""

    COLLECTION = 0
    PARSING = 1
    REQUEST_HEADERS = 2
    QUEUEING = 3
    CANDIDATES = 4
    PRODUCTION = 5
    ADMISSION = 6
    SCHEDULING = 7
    PRE_REQUEST = 8
    RESPONSE = 9

    @property
    def title(self) -> str:
        """Name for messages."""
        return self.name.lower().replace("_", "-")


class ExtensionPoint(enum.StrEnum):
    """The `extension_point` label of plugin metrics; values are those of llm-d if llm-d has the point."""

    REQUEST_PARSING = "RequestParsing"
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
    MEMORY = "Memory"


@dataclass(frozen=True, slots=True)
class KindFacts:
    """One row of the table.

    Attributes:
        api: The class in `endpick.api`.
        on_fault: Default for `onFault`; a kind that decides who may serve fails closed.
        methods: Methods called on the request path, with their extension points.
        named_at: Where the document names instances; empty if an instance takes part because it is defined.
        at_most: Maximum number of instances where it is named: per profile, or per document.
        in_profile: Named in scheduling profiles.
        writes: Instances may write data keys.
        by_reference: Other plugins call it through a parameter; see `RefersTo`.
        article: Indefinite article for messages.
    """

    api: Kind
    layer: Layer
    on_fault: OnFault = OnFault.SKIP
    methods: Mapping[str, ExtensionPoint] = field(default_factory=dict)
    named_at: str = ""
    at_most: int | None = None
    in_profile: bool = False
    writes: bool = False
    by_reference: bool = False
    article: str = "a"

    @property
    def name(self) -> str:
        """Name for operators: `data-source`."""
        return self.api.kind

    @property
    def on_request(self) -> bool:
        """True if an instance takes part in every request merely because it is defined."""
        return bool(self.methods) and not self.named_at and self.at_most is None

    @property
    def title(self) -> str:
        """With article: `a data source`."""
        return f"{self.article} {self.noun}"

    @property
    def noun(self) -> str:
        """As words: `data source`."""
        return self.name.replace("-", " ")


_PROFILE = "schedulingProfiles[].plugins"

KINDS: Mapping[Kind, KindFacts] = MappingProxyType(
    {
        row.api: row
        for row in (
            KindFacts(Filter, Layer.SCHEDULING, OnFault.REFUSE, {"filter": ExtensionPoint.FILTER}, _PROFILE, in_profile=True),
            KindFacts(Scorer, Layer.SCHEDULING, OnFault.SKIP, {"score": ExtensionPoint.SCORER}, _PROFILE, in_profile=True),
            KindFacts(Picker, Layer.SCHEDULING, OnFault.REFUSE, {"pick": ExtensionPoint.PICKER}, _PROFILE, at_most=1, in_profile=True),
            KindFacts(
                ProfileHandler,
                Layer.SCHEDULING,
                OnFault.REFUSE,
                {"pick_profiles": ExtensionPoint.PROFILE_PICKER, "process_results": ExtensionPoint.PROCESS_PROFILES_RESULTS},
                at_most=1,
                writes=True,
            ),
            KindFacts(
                DisaggregationDecider,
                Layer.SCHEDULING,
                OnFault.SKIP,
                {"disaggregate": ExtensionPoint.DISAGGREGATION_DECIDER},
                "plugins[].parameters",
                by_reference=True,
            ),
            KindFacts(DataSource, Layer.COLLECTION, named_at="dataLayer.sources"),
            KindFacts(DataCollector, Layer.COLLECTION, named_at="dataLayer.sources[].collectors", writes=True),
            KindFacts(EndpointDiscovery, Layer.COLLECTION, named_at="dataLayer.discovery", at_most=1, article="an"),
            KindFacts(DataProducer, Layer.PRODUCTION, OnFault.SKIP, {"produce": ExtensionPoint.DATA_PRODUCER}, writes=True),
            KindFacts(
                RequestHeaderProcessor,
                Layer.REQUEST_HEADERS,
                OnFault.REFUSE,
                {"request_headers": ExtensionPoint.REQUEST_HEADERS},
                writes=True,
            ),
            KindFacts(CandidateFilter, Layer.CANDIDATES, OnFault.REFUSE, {"filter_candidates": ExtensionPoint.CANDIDATE_FILTER}),
            KindFacts(Admitter, Layer.ADMISSION, OnFault.REFUSE, {"admit": ExtensionPoint.ADMISSION}, article="an"),
            KindFacts(PreRequest, Layer.PRE_REQUEST, OnFault.SKIP, {"before_request": ExtensionPoint.PRE_REQUEST}, writes=True),
            KindFacts(
                ResponseObserver,
                Layer.RESPONSE,
                OnFault.SKIP,
                {
                    "response_started": ExtensionPoint.RESPONSE_RECEIVED,
                    "first_chunk": ExtensionPoint.RESPONSE_STREAMING,
                    "response_metadata": ExtensionPoint.RESPONSE_COMPLETE,
                    "response_ended": ExtensionPoint.RESPONSE_COMPLETE,
                },
                writes=True,
            ),
            KindFacts(
                Parser,
                Layer.PARSING,
                OnFault.REFUSE,
                {
                    "parse": ExtensionPoint.REQUEST_PARSING,
                    "rewrite_model": ExtensionPoint.REQUEST_PARSING,
                    "usage": ExtensionPoint.RESPONSE_PARSING,
                },
                "requestHandler.parsers",
            ),
            KindFacts(
                SaturationDetector,
                Layer.ADMISSION,
                OnFault.SKIP,
                {"saturation": ExtensionPoint.ADMISSION},
                "flowControl.saturationDetector",
                at_most=1,
            ),
            KindFacts(
                FairnessPolicy,
                Layer.QUEUEING,
                OnFault.SKIP,
                {
                    "choose": ExtensionPoint.FAIRNESS_POLICY,
                    "flow_changed": ExtensionPoint.FAIRNESS_POLICY,
                    "dispatched": ExtensionPoint.FAIRNESS_POLICY,
                },
                "flowControl.priorityBands[].fairnessPolicyRef",
            ),
            KindFacts(
                OrderingPolicy,
                Layer.QUEUEING,
                OnFault.SKIP,
                {"sort_key": ExtensionPoint.ORDERING_POLICY},
                "flowControl.priorityBands[].orderingPolicyRef",
                article="an",
            ),
            KindFacts(
                UsageLimitPolicy,
                Layer.QUEUEING,
                OnFault.SKIP,
                {"ceilings": ExtensionPoint.USAGE_LIMIT_POLICY},
                "flowControl.usageLimitPolicyPluginRef",
                at_most=1,
            ),
            KindFacts(
                EvictionFilter, Layer.PRE_REQUEST, OnFault.SKIP, {"is_evictable": ExtensionPoint.EVICTION_FILTER}, at_most=1, article="an"
            ),
            KindFacts(
                EvictionOrderingPolicy,
                Layer.PRE_REQUEST,
                OnFault.SKIP,
                {"sort_key": ExtensionPoint.EVICTION_ORDERING_POLICY},
                at_most=1,
                article="an",
            ),
        )
    }
)


KindName: TypeAlias = Annotated[str, WithJsonSchema({"enum": [kind.kind for kind in KINDS], "type": "string"})]
"""The name of a kind in JSON documents."""


def kinds_of(plugin: type) -> tuple[Kind, ...]:
    """All kinds of a class, in table order."""
    return tuple(kind for kind in KINDS if issubclass(plugin, kind))


def default_on_fault(kinds: Iterable[Kind]) -> OnFault:
    """REFUSE if one of the kinds fails closed, else SKIP."""
    return OnFault.REFUSE if any(KINDS[kind].on_fault is OnFault.REFUSE for kind in kinds) else OnFault.SKIP


def first_write(kinds: Iterable[Kind]) -> Layer:
    """The earliest layer in which an instance of these kinds can write."""
    rows = [KINDS[kind] for kind in kinds]
    return min(row.layer for row in ([row for row in rows if row.writes] or rows))


def last_read(kinds: Iterable[Kind]) -> Layer:
    """The latest layer in which an instance of these kinds can read."""
    return max(KINDS[kind].layer for kind in kinds)


def titles(kinds: Iterable[Kind]) -> str:
    """Kinds as words: `a filter and a scorer`."""
    return " and ".join(KINDS[kind].title for kind in kinds)


def parameters_model(plugin: type) -> object:
    """The model of a plugin's parameters: the generic argument of its kind. The contract checks that it is a `Parameters` class."""
    return next(iter(generic_arguments(plugin, Plugin)), Parameters)


def payload_of(plugin: type) -> type[object] | None:
    """Payload type of a data source or collector (its second generic argument); None for any payload and for other kinds."""
    base = next((kind for kind in (DataSource, DataCollector) if issubclass(plugin, kind)), None)
    if base is None:
        return None
    payload = generic_arguments(plugin, base)[1]
    payload = get_origin(payload) or payload
    return payload if isinstance(payload, type) and payload is not object else None
