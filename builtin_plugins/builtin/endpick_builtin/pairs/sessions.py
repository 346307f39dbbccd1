"""`session-affinity-filter`, `session-affinity-scorer` and `multicluster-session-affinity-filter`: keep a session where it is."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Self, TypeAlias

import numpy as np
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from endpick.api import (
    AGENT_IDENTITY,
    SESSION_ID,
    Category,
    CycleState,
    DataKey,
    Endpoints,
    Filter,
    FloatArray,
    InferenceRequest,
    Limit,
    Limits,
    Parameters,
    PluginContext,
    PreRequest,
    ResponseHead,
    ResponseObserver,
    SchedulingResult,
    Scope,
    Scorer,
    ScoringState,
    Stability,
    Subscriptions,
    UpstreamHeaders,
)
from endpick_builtin.pairs.session_bindings import SessionBindings

_MANY_SESSIONS = Limit(
    "maxSessions",
    "sessions not seen for longest were forgotten early: there are more than sessionIdConfig.maxSessions; raise it, "
    "or lower evictionTtlSeconds",
)
HeaderName: TypeAlias = Annotated[str, Field(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"), AfterValidator(str.lower)]


class Strategy(StrEnum):
    """How a request says which endpoint served its session."""

    ENCODED_ENDPOINT_HEADER = "encoded_endpoint_header"
    SESSION_ID = "session_id"


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EncodedEndpointHeaderConfig(_Closed):
    """The header that carries the endpoint."""

    header: Annotated[HeaderName, Field(description="Header of requests and responses.")] = "x-session-token"


_BY_OTHER_NAMES: Mapping[str, DataKey[str]] = {
    **dict.fromkeys((SESSION_ID.name, "SessionIDDataKey", "SessionID"), SESSION_ID),
    AGENT_IDENTITY.name: AGENT_IDENTITY,
}
"""llm-d's names of request data that endpick calls by names of its own."""


class SessionSource(_Closed):
    """Where an id is looked for: in a header, or in what a producer found out."""

    header: Annotated[HeaderName | None, Field(description="Header that holds the id.")] = None
    attribute: Annotated[
        str | None, Field(min_length=1, description="Data key of scope `request` that holds the id, such as `session-id`.")
    ] = None
    producer: Annotated[str | None, Field(description="Instance that writes the data key, where several do.")] = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.header is None) == (self.attribute is None):
            raise ValueError("a source is either a header or an attribute; give one of them")
        if self.header is not None and self.producer is not None:
            raise ValueError("a header has no producer; remove it, or name an attribute")
        return self

    def key(self) -> DataKey[str] | None:
        """The data key; None for a header."""
        if self.attribute is None:
            return None
        named = _BY_OTHER_NAMES.get(self.attribute) or DataKey(
            self.attribute, str, Scope.REQUEST, doc="Which session a request belongs to."
        )
        return named.from_producer(self.producer or "")


class SessionIdConfig(_Closed):
    """Where the id of a session stands, and how long its endpoint is remembered."""

    sources: Annotated[
        tuple[SessionSource, ...],
        Field(min_length=1, description="Where the id is looked for; the first that has one counts.", examples=[[{"header": "x-user"}]]),
    ] = (SessionSource(header="x-session-id"),)
    eviction_ttl_seconds: Annotated[
        float, Field(alias="evictionTtlSeconds", gt=0.0, description="A session that was not seen for so long is forgotten (seconds).")
    ] = 300.0
    eviction_sweep_seconds: Annotated[
        float, Field(alias="evictionSweepSeconds", gt=0.0, description="How often forgotten sessions are removed (seconds).")
    ] = 10.0
    max_sessions: Annotated[
        int,
        Field(
            alias="maxSessions",
            gt=0,
            description="Sessions to remember at most, some 300 bytes each; the one not seen for longest gives way. llm-d has no bound.",
        ),
    ] = 200_000


class SessionAffinityParameters(Parameters):
    """How sessions are told apart."""

    strategy: Annotated[
        Strategy,
        Field(
            description="`encoded_endpoint_header`: the client returns a header that names its endpoint. "
            "`session_id`: the client has an id, and this picker remembers the endpoint.",
            examples=["session_id"],
        ),
    ] = Strategy.ENCODED_ENDPOINT_HEADER
    profile_name: Annotated[
        str, Field(alias="profileName", description="Scheduling profile whose pick the session is bound to; empty for the one that serves.")
    ] = ""
    encoded_endpoint_header_config: Annotated[
        EncodedEndpointHeaderConfig,
        Field(
            alias="encodedEndpointHeaderConfig",
            description="For `encoded_endpoint_header`.",
            default_factory=EncodedEndpointHeaderConfig,
        ),
    ]
    session_id_config: Annotated[
        SessionIdConfig, Field(alias="sessionIdConfig", description="For `session_id`.", default_factory=SessionIdConfig)
    ]


def encoded(endpoint: str) -> str:
    """The name of an endpoint as the header carries it."""
    return b64encode(endpoint.encode()).decode()


def decoded(token: str) -> str | None:
    """The name of an endpoint in a header; None for a header that holds none."""
    try:
        return b64decode(token, validate=True).decode()
    except (NoBase64, ValueError):
        return None


class SessionMetrics(Collector):
    """How many sessions are bound, and how many gave way because there were too many."""

    def __init__(self, bindings: SessionBindings) -> None:
        self._bindings = bindings

    def describe(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """The families without samples."""
        return iter(_families())

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """Both families as they are now; called by the registry."""
        bound, displaced = _families()
        bound.add_metric((), len(self._bindings))
        displaced.add_metric((), self._bindings.displaced)
        yield from (bound, displaced)


def _families() -> tuple[GaugeMetricFamily, CounterMetricFamily]:
    return (
        GaugeMetricFamily("endpick_session_bindings", "Sessions whose endpoint is remembered."),
        CounterMetricFamily(
            "endpick_session_bindings_displaced", "Sessions that were forgotten early because there were more than `maxSessions`."
        ),
    )


class _SessionAffinity(PreRequest[SessionAffinityParameters], ResponseObserver[SessionAffinityParameters]):
    """Finds the endpoint of a request's session, and binds sessions to what was picked."""

    stability = Stability.EXPERIMENTAL

    @classmethod
    def subscriptions(cls, parameters: SessionAffinityParameters) -> Subscriptions:
        """The ids of sessions that producers find."""
        if parameters.strategy is not Strategy.SESSION_ID:
            return Subscriptions()
        keys = (source.key() for source in parameters.session_id_config.sources)
        return Subscriptions((), tuple(key for key in keys if key is not None))

    def __init__(self, name: str, parameters: SessionAffinityParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        config = parameters.session_id_config
        self._header = parameters.encoded_endpoint_header_config.header
        self._by_id = parameters.strategy is Strategy.SESSION_ID
        self._sources = tuple((source.header, source.key()) for source in config.sources)
        self._bindings = SessionBindings(config.eviction_ttl_seconds, config.eviction_sweep_seconds, config.max_sessions, context.clock)
        self._limits = Limits(context, (_MANY_SESSIONS,))
        self._displaced = 0
        """Sessions whose displacement has been counted."""
        if context.registry is not None:
            context.registry.register(SessionMetrics(self._bindings))

    def _position(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> int | None:
        """Where the endpoint of the session stands among the candidates; None when it is none of them, or the session has none."""
        if self._by_id:
            session = self._session(request, state)
            bound = self._bindings.endpoint_of(session) if session else None
        else:
            token = request.headers.get(self._header)
            bound = decoded(token) if token else None
        position = None if bound is None else endpoints.position(bound)
        if position is not None:
            state.private["bound"] = bound
        return position

    def _session(self, request: InferenceRequest, state: ScoringState) -> str:
        """The id from the first source that has one; empty for none."""
        ids = (state.get(key) if key is not None else request.headers.get(header or "") for header, key in self._sources)
        return next((found for found in ids if found), "")

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        """Bind the session to what was picked, unless the endpoint it has was among the candidates."""
        run = result.runs.get(self.parameters.profile_name or result.primary)
        if run is None or run.picked is None:
            return
        picked = run.picked.take([0]).members[0].name
        if not self._by_id:
            state.private["picked"] = picked
            return
        session = self._session(request, state)
        if session:
            bound = state.private.get("bound", picked)
            assert isinstance(bound, str)
            self._bindings.bind(session, bound)
            if self._bindings.displaced > self._displaced:
                self._limits.acted(_MANY_SESSIONS, times=self._bindings.displaced - self._displaced)
                self._displaced = self._bindings.displaced

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> Mapping[str, str] | None:
        """Tell the client its endpoint: the one that served, or what the profile that binds sessions picked."""
        picked = state.private.get("picked")
        if not isinstance(picked, str):
            return None
        served = head.endpoint is not None and not self.parameters.profile_name
        return {self._header: encoded(head.endpoint.name if served and head.endpoint else picked)}

    def learnt_bytes(self) -> int:
        """What the bindings take."""
        return self._bindings.size_bytes

    def forget_some(self) -> bool:
        """The half of the sessions that was not seen for longest, in parts."""
        return self._bindings.halve()


class SessionAffinityFilter(_SessionAffinity, Filter[SessionAffinityParameters]):
    """Keep only the endpoint that serves the request's session, if it is a candidate; else all.

    `encoded_endpoint_header`: each response carries a header with the name of its endpoint in base64, which the client sends along with its
    next request. `session_id`: the client sends an id, and this picker binds it to the endpoint it picks, until the session was not seen
    for `evictionTtlSeconds`, or the endpoint was no candidate. A header that names no candidate, and a request without one, change nothing.
    """

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> Endpoints:
        """See the class."""
        position = self._position(request, endpoints, state)
        return endpoints if position is None else endpoints.take([position])


class MultiClusterSessionAffinityFilter(SessionAffinityFilter):
    """Keep only the cluster that serves the request's session, if it is a candidate; else all. As `session-affinity-filter`."""


class SessionAffinityScorer(_SessionAffinity, Scorer[SessionAffinityParameters]):
    """Prefer the endpoint that serves the request's session.

    score = 1 for that endpoint, and 0 for all others, and for all when the session has none. How a request names its session:
    `session-affinity-filter` says it.
    """

    category = Category.AFFINITY

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """See the class."""
        scores = np.zeros(len(endpoints))
        position = self._position(request, endpoints, state)
        if position is not None:
            scores[position] = 1.0
        return scores
