"""`session-state-producer`: counts turns, requests and tokens of each agent session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from endpick.api import (
    CycleState,
    DataProducer,
    Endpoints,
    InferenceRequest,
    PluginContext,
    PreRequest,
    ResponseEnd,
    ResponseObserver,
    SchedulingResult,
    Stability,
    TerminationCause,
    UpstreamHeaders,
)
from endpick.api.keys import AGENT_IDENTITY, SESSION_STATE, SessionState
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.recency import Recency, kept_id

_MOST_SESSIONS = 200_000  # some 300 bytes each; clients choose the ids


class SessionStateParameters(CamelParameters):
    """Sets how long idle sessions are remembered."""

    eviction_ttl_seconds: Annotated[float, Field(ge=0, description="Idle seconds after which a session is forgotten; 0 for never.")] = (
        3600.0
    )
    eviction_sweep_seconds: Annotated[float, Field(gt=0, description="How often forgotten sessions are removed (seconds).")] = 300.0


@dataclass(slots=True)
class _Session:
    first_seen_at: float
    last_seen_at: float
    turns: int = 0
    in_flight: int = 0
    completed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class SessionStateProducer(
    DataProducer[SessionStateParameters], PreRequest[SessionStateParameters], ResponseObserver[SessionStateParameters]
):
    """Counts turns, requests and tokens per session, as named by `agent-identity`.

    A request counts as a turn once it is sent; responses that end naturally add to completed requests and tokens. Sessions with requests in
    flight are kept. 200,000 sessions are remembered at most. Each picker counts what it sent itself.
    """

    consumes_optional = (AGENT_IDENTITY,)
    produces = (SESSION_STATE,)
    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: SessionStateParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._sessions: Recency[str, _Session] = Recency()
        self._swept_at = context.clock()

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        identity = state.get(AGENT_IDENTITY)
        if not identity:
            return
        now = self.context.clock()
        self._sweep(now)
        key = kept_id(identity)
        session = self._sessions.get(key) or _Session(now, now)
        state.put(
            SESSION_STATE,
            SessionState(
                session.turns,
                now - session.first_seen_at,
                session.last_seen_at,
                session.in_flight,
                session.completed,
                session.input_tokens,
                session.output_tokens,
            ),
        )
        session.last_seen_at = now
        self._sessions.use(key, session)
        self._sessions.trim(_MOST_SESSIONS)
        state.private["session"] = session

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        session = state.private.get("session")
        if isinstance(session, _Session):
            session.turns += 1
            session.in_flight += 1

    def response_ended(self, request: InferenceRequest, end: ResponseEnd, state: CycleState) -> None:
        session = state.private.pop("session", None)
        if not isinstance(session, _Session):
            return
        session.in_flight -= 1
        if end.cause is TerminationCause.NATURAL:
            session.completed += 1
            if end.usage is not None:
                session.input_tokens += end.usage.prompt_tokens
                session.output_tokens += end.usage.completion_tokens

    def _sweep(self, now: float) -> None:
        if now - self._swept_at < self.parameters.eviction_sweep_seconds:
            return
        self._swept_at = now
        ttl = self.parameters.eviction_ttl_seconds
        over = [key for key, session in self._sessions.items() if ttl and now - session.last_seen_at > ttl and not session.in_flight]
        for key in over:
            del self._sessions[key]
