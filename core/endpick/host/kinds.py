"""The facts about plugin kinds. A new kind is a class in `endpick.api`, a row in `KINDS`, and the code that calls it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
    Filter,
    Parameters,
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
from endpick.api.discovery import EndpointDiscovery, PeerDiscovery
from endpick.api.fleet import StateStore
from endpick.api.flow_control import EvictionFilter, EvictionOrderingPolicy, FairnessPolicy, OrderingPolicy, UsageLimitPolicy
from endpick.api.plugin import generic_arguments
from endpick.host import methods
from endpick.host.methods import Method

Kind: TypeAlias = type[Plugin[Any]]  # a class in `endpick.api`; `Kind.kind` is its name


class OnFault(enum.StrEnum):
    """How the host treats a request when an instance raises or returns something invalid."""

    SKIP = "skip"  # continue without the instance
    REFUSE = "refuse"


class Layer(enum.IntEnum):
    """The stages of a request, in order. Data flows only from earlier layers to later ones."""

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
        """The name in messages, such as `pre-request`."""
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True, slots=True)
class KindFacts:
    """The facts about one plugin kind, as a row of `KINDS`."""

    api: Kind
    layer: Layer
    methods: tuple[Method[Any], ...] = ()  # that the host calls through the boundary
    named_at: str = ""  # in the document; empty if a definition suffices
    on_fault: OnFault = OnFault.SKIP  # kinds that decide who may serve fail closed
    at_most: int | None = None  # per profile, or per document
    writes: bool = False  # data keys
    by_reference: bool = False  # through a parameter, see `RefersTo`

    @property
    def name(self) -> str:
        """The name that operators write, such as `data-source`."""
        return self.api.kind

    @property
    def in_profile(self) -> bool:
        """True if scheduling profiles name the instances."""
        return self.named_at == _PROFILE

    @property
    def on_request(self) -> bool:
        """True if every defined instance takes part in every request."""
        return bool(self.methods) and not self.named_at and self.at_most is None

    @property
    def title(self) -> str:
        """The name with its article, such as `a data source`."""
        return f"{'an' if self.noun[0] in 'aeio' else 'a'} {self.noun}"

    @property
    def noun(self) -> str:
        """The name in words, such as `data source`."""
        return self.name.replace("-", " ")


_PROFILE = "schedulingProfiles[].plugins"
_BANDS = "flowControl.priorityBands[]"
_REFUSE = OnFault.REFUSE

_ROWS = (
    KindFacts(Filter, Layer.SCHEDULING, (methods.FILTER,), _PROFILE, _REFUSE),
    KindFacts(Scorer, Layer.SCHEDULING, (methods.SCORE,), _PROFILE),
    KindFacts(Picker, Layer.SCHEDULING, (methods.PICK,), _PROFILE, _REFUSE, at_most=1),
    KindFacts(
        ProfileHandler,
        Layer.SCHEDULING,
        (methods.PICK_PROFILES, methods.PROCESS_RESULTS),
        on_fault=_REFUSE,
        at_most=1,
        writes=True,
    ),
    KindFacts(DisaggregationDecider, Layer.SCHEDULING, (methods.DISAGGREGATE,), "plugins[].parameters", by_reference=True),
    KindFacts(DataSource, Layer.COLLECTION, (methods.POLL, methods.POLL_POOL, methods.NOTIFY), named_at="dataLayer.sources"),
    KindFacts(DataCollector, Layer.COLLECTION, (methods.COLLECT,), named_at="dataLayer.sources[].collectors", writes=True),
    KindFacts(EndpointDiscovery, Layer.COLLECTION, named_at="dataLayer.discovery.endpoints", at_most=1),
    KindFacts(PeerDiscovery, Layer.COLLECTION, named_at="dataLayer.discovery.peers", at_most=1),
    KindFacts(StateStore, Layer.COLLECTION, named_at="dataLayer.crossReplica", at_most=1),
    KindFacts(DataProducer, Layer.PRODUCTION, (methods.PRODUCE,), writes=True),
    KindFacts(Responder, Layer.REQUEST_HEADERS, (methods.RESPOND,)),
    KindFacts(RequestHeaderProcessor, Layer.REQUEST_HEADERS, (methods.REQUEST_HEADERS,), on_fault=_REFUSE, writes=True),
    KindFacts(CandidateFilter, Layer.CANDIDATES, (methods.FILTER_CANDIDATES,), on_fault=_REFUSE),
    KindFacts(Admitter, Layer.ADMISSION, (methods.ADMIT,), on_fault=_REFUSE),
    KindFacts(PreRequest, Layer.PRE_REQUEST, (methods.BEFORE_REQUEST,), writes=True),
    KindFacts(
        ResponseObserver,
        Layer.RESPONSE,
        (methods.RESPONSE_STARTED, methods.FIRST_CHUNK, methods.RESPONSE_METADATA, methods.RESPONSE_ENDED),
        writes=True,
    ),
    KindFacts(
        Parser,
        Layer.PARSING,
        (methods.PARSE, methods.PARSE_LARGE, methods.REWRITE_MODEL, methods.REWRITE_PRIORITY, methods.USAGE),
        "requestHandler.parsers",
        _REFUSE,
    ),
    KindFacts(SaturationDetector, Layer.ADMISSION, (methods.SATURATION,), "flowControl.saturationDetector", at_most=1, by_reference=True),
    KindFacts(FairnessPolicy, Layer.QUEUEING, (methods.CHOOSE, methods.FLOW_CHANGED, methods.DISPATCHED), f"{_BANDS}.fairnessPolicyRef"),
    KindFacts(OrderingPolicy, Layer.QUEUEING, (methods.SORT_KEY,), f"{_BANDS}.orderingPolicyRef"),
    KindFacts(UsageLimitPolicy, Layer.QUEUEING, (methods.CEILINGS,), "flowControl.usageLimitPolicyPluginRef", at_most=1),
    KindFacts(EvictionFilter, Layer.PRE_REQUEST, (methods.IS_EVICTABLE,), at_most=1),
    KindFacts(EvictionOrderingPolicy, Layer.PRE_REQUEST, (methods.EVICTION_SORT_KEY,), at_most=1),
)

KINDS: Mapping[Kind, KindFacts] = MappingProxyType({row.api: row for row in _ROWS})

KindName: TypeAlias = Annotated[str, WithJsonSchema({"enum": [kind.kind for kind in KINDS], "type": "string"})]


def kinds_of(plugin: type) -> tuple[Kind, ...]:
    """Return the kinds of a class, in table order."""
    return tuple(kind for kind in KINDS if issubclass(plugin, kind))


def default_on_fault(kinds: Iterable[Kind]) -> OnFault:
    """Return REFUSE if any of the kinds fails closed, else SKIP."""
    return OnFault.REFUSE if any(KINDS[kind].on_fault is OnFault.REFUSE for kind in kinds) else OnFault.SKIP


def first_write(kinds: Iterable[Kind]) -> Layer:
    """Return the earliest layer in which these kinds write data."""
    rows = [KINDS[kind] for kind in kinds]
    return min(row.layer for row in ([row for row in rows if row.writes] or rows))


def last_read(kinds: Iterable[Kind]) -> Layer:
    """Return the latest layer in which these kinds read data."""
    return max(KINDS[kind].layer for kind in kinds)


def titles(kinds: Iterable[Kind]) -> str:
    """Join the titles of the kinds, as in `a filter and a scorer`."""
    return " and ".join(KINDS[kind].title for kind in kinds)


def parameters_model(plugin: type) -> object:
    """Return the generic argument of the kind, which `contract` checks."""
    return next(iter(generic_arguments(plugin, Plugin)), Parameters)


def payload_of(plugin: type) -> type[object] | None:
    """Return the payload type of a source or collector; None for any payload and for other kinds."""
    base = next((kind for kind in (DataSource, DataCollector) if issubclass(plugin, kind)), None)
    if base is None:
        return None
    payload = generic_arguments(plugin, base)[1]
    payload = get_origin(payload) or payload
    return payload if isinstance(payload, type) and payload is not object else None
