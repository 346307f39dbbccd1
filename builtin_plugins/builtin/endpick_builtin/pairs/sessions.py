"""Session ids, and `session-affinity-*` plugins that keep a session on its endpoint."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from collections.abc import Mapping
from typing import Annotated, Literal, Self, TypeAlias

import numpy as np
from prometheus_client.metrics import Counter, Gauge
from pydantic import AfterValidator, ConfigDict, Field, model_validator

from endpick.api import (
    Category,
    CycleState,
    DataKey,
    DataProducer,
    Endpoints,
    Filter,
    FloatArray,
    InferenceRequest,
    PluginContext,
    PreRequest,
    RequestHeaderProcessor,
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
from endpick.api.keys import AGENT_IDENTITY, SESSION_ID
from endpick_builtin.bindings import Bindings, LearntBindings
from endpick_builtin.camel_parameters import CamelParameters

SESSION_HEADERS = ("x-claude-code-session-id", "x-session-affinity", "session-id", "session_id")


def cookie(header: str, name: str) -> str:
    """Return the unquoted value of a cookie, or an empty text if it is absent."""
    found = re.search(rf"(?:^|;)\s*{re.escape(name)}\s*=([^;]*)", header)
    value = found[1].strip() if found else ""
    return value[1:-1] if len(value) >= 2 and value[0] == value[-1] == '"' else value


class SessionIdParameters(CamelParameters):
    """Names the header or the cookie that holds the session."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"headerName": "x-session-id"}]})

    header_name: Annotated[str, Field(description="Header with the session; case-insensitive.")] = ""
    cookie_name: Annotated[str, Field(description="Cookie with the session; case-sensitive.")] = ""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if bool(self.header_name) == bool(self.cookie_name):
            raise ValueError("name the session's place: exactly one of headerName and cookieName")
        return self


class SessionIdProducer(DataProducer[SessionIdParameters]):
    """Reads the client session of a request, for plugins that keep sessions together.

    The value is opaque; if it is empty, there is no session.
    """

    produces = (SESSION_ID,)

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        if self.parameters.header_name:
            session = request.headers.get(self.parameters.header_name.lower(), "")
        else:
            session = cookie(request.headers.get("cookie", ""), self.parameters.cookie_name)
        if session:
            state.put(SESSION_ID, session)


class AgentIdentityParameters(CamelParameters):
    """Lists headers that may hold the session, in addition to those of known agents."""

    additional_session_headers: Annotated[
        tuple[str, ...], Field(max_length=64, description="Headers to look at first, in this order.")
    ] = ()


class AgentIdentity(RequestHeaderProcessor[AgentIdentityParameters]):
    """Reads the session of a coding agent, which is also the fairness id if the client sent none.

    The first non-empty header counts: `additionalSessionHeaders`, `x-claude-code-session-id`, `x-session-affinity`, `session-id`,
    `session_id`.
    """

    produces = (AGENT_IDENTITY,)
    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: AgentIdentityParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._headers = (*(header.lower() for header in parameters.additional_session_headers), *SESSION_HEADERS)

    def request_headers(self, request: InferenceRequest, state: CycleState) -> None:
        for header in self._headers:
            identity = request.headers.get(header)
            if identity:
                state.put(AGENT_IDENTITY, identity)
                return


HeaderName: TypeAlias = Annotated[str, Field(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"), AfterValidator(str.lower)]


class EncodedEndpointHeaderConfig(CamelParameters):
    """Names the header that carries the endpoint."""

    header: Annotated[HeaderName, Field(description="Header of requests and responses.")] = "x-session-token"


_BY_OTHER_NAMES: Mapping[str, DataKey[str]] = {
    **dict.fromkeys((SESSION_ID.name, "SessionIDDataKey", "SessionID"), SESSION_ID),
    AGENT_IDENTITY.name: AGENT_IDENTITY,
}  # by llm-d names


class SessionSource(CamelParameters):
    """A source of session ids: a header or a data key."""

    header: Annotated[HeaderName | None, Field(description="Header that holds the id.")] = None
    attribute: Annotated[
        str | None, Field(min_length=1, description="Data key of scope `request` that holds the id, such as `session-id`.")
    ] = None
    producer: Annotated[str | None, Field(description="Instance that writes the data key; empty for the only one.")] = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.header is None) == (self.attribute is None):
            raise ValueError("a source is either a header or an attribute; give one of them")
        if self.header is not None and self.producer is not None:
            raise ValueError("a header has no producer; remove it, or name an attribute")
        return self

    def key(self) -> DataKey[str] | None:
        if self.attribute is None:
            return None
        named = _BY_OTHER_NAMES.get(self.attribute) or DataKey(
            self.attribute, str, Scope.REQUEST, doc="Which session a request belongs to."
        )
        return named.from_producer(self.producer or "")


class SessionIdConfig(CamelParameters):
    """Sources of the session id, and retention of bindings."""

    sources: Annotated[
        tuple[SessionSource, ...],
        Field(min_length=1, description="Sources of the id; the first that has one counts.", examples=[[{"header": "x-user"}]]),
    ] = (SessionSource(header="x-session-id"),)
    eviction_ttl_seconds: Annotated[float, Field(gt=0.0, description="Seconds without a request after which a session is forgotten.")] = (
        300.0
    )
    eviction_sweep_seconds: Annotated[float, Field(gt=0.0, description="How often forgotten sessions are removed (seconds).")] = 10.0
    max_sessions: Annotated[
        int,
        Field(
            gt=0,
            description="Sessions to remember at most, some 300 bytes each; the one not seen for longest gives way. llm-d has no bound.",
        ),
    ] = 200_000


class SessionAffinityParameters(CamelParameters):
    """How sessions are identified and bound."""

    strategy: Annotated[
        Literal["encoded_endpoint_header", "session_id"],
        Field(
            description="`encoded_endpoint_header`: the client returns a header that names its endpoint. "
            "`session_id`: the client has an id, and this picker remembers the endpoint.",
            examples=["session_id"],
        ),
    ] = "encoded_endpoint_header"
    profile_name: Annotated[
        str, Field(description="Scheduling profile that picks the endpoint of the session; empty for the primary one.")
    ] = ""
    encoded_endpoint_header_config: Annotated[
        EncodedEndpointHeaderConfig, Field(description="For `encoded_endpoint_header`.", default_factory=EncodedEndpointHeaderConfig)
    ]
    session_id_config: Annotated[SessionIdConfig, Field(description="For `session_id`.", default_factory=SessionIdConfig)]


def encoded(endpoint: str) -> str:
    """Return the header value for an endpoint name, which is its base64 form."""
    return b64encode(endpoint.encode()).decode()


def decoded(token: str) -> str | None:
    """Return the endpoint name in a header value; None if it is invalid."""
    try:
        return b64decode(token, validate=True).decode()
    except (NoBase64, ValueError):
        return None


class _SessionAffinity(PreRequest[SessionAffinityParameters], ResponseObserver[SessionAffinityParameters], LearntBindings):
    stability = Stability.EXPERIMENTAL

    @classmethod
    def subscriptions(cls, parameters: SessionAffinityParameters) -> Subscriptions:
        if parameters.strategy != "session_id":
            return Subscriptions()
        keys = (source.key() for source in parameters.session_id_config.sources)
        return Subscriptions((), tuple(key for key in keys if key is not None))

    def __init__(self, name: str, parameters: SessionAffinityParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        config = parameters.session_id_config
        self._header = parameters.encoded_endpoint_header_config.header
        self._by_id = parameters.strategy == "session_id"
        self._sources = tuple((source.header, source.key()) for source in config.sources)
        self._bindings = Bindings(config.eviction_ttl_seconds, config.eviction_sweep_seconds, config.max_sessions, context)
        bound = Gauge("endpick_session_bindings", "Sessions with a remembered endpoint.", registry=context.registry)
        bound.set_function(lambda: len(self._bindings))
        self._displaced = Counter(
            "endpick_session_bindings_displaced", "Sessions forgotten early because of `maxSessions`.", registry=context.registry
        )

    def _position(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> int | None:
        if self._by_id:
            session = self._session(request, state)
            bound = self._bindings.name_of(session) if session else None
        else:
            token = request.headers.get(self._header)
            bound = decoded(token) if token else None
        position = None if bound is None else endpoints.position(bound)
        if position is not None:
            state.private["bound"] = bound
        return position

    def _session(self, request: InferenceRequest, state: ScoringState) -> str:
        ids = (state.get(key) if key is not None else request.headers.get(header or "") for header, key in self._sources)
        return next((found for found in ids if found), "")

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
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
            self._displaced.inc(self._bindings.bind(session, bound))

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> Mapping[str, str] | None:
        picked = state.private.get("picked")
        if not isinstance(picked, str):
            return None
        served = head.endpoint is not None and not self.parameters.profile_name
        return {self._header: encoded(head.endpoint.name if served and head.endpoint else picked)}


class SessionAffinityFilter(_SessionAffinity, Filter[SessionAffinityParameters]):
    """Keeps only the endpoint that serves the session, if it is a candidate; otherwise all.

    `encoded_endpoint_header`: responses carry their endpoint's base64 name in a header, which the client returns. `session_id`: the
    client's id is bound to the picked endpoint until it is idle for `evictionTtlSeconds`, or the endpoint is not a candidate.
    """

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> Endpoints:
        position = self._position(request, endpoints, state)
        return endpoints if position is None else endpoints.take([position])


class MultiClusterSessionAffinityFilter(SessionAffinityFilter):
    """Keeps only the cluster that serves the session, if it is a candidate; see `session-affinity-filter`."""


class SessionAffinityScorer(_SessionAffinity, Scorer[SessionAffinityParameters]):
    """Prefers the endpoint that serves the session: score = 1 for it, 0 for the others.

    Sessions are those of `session-affinity-filter`.
    """

    category = Category.AFFINITY

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        scores = np.zeros(len(endpoints))
        position = self._position(request, endpoints, state)
        if position is not None:
            scores[position] = 1.0
        return scores
