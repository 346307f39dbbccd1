"""`session-id-producer` reads a client's session; `agent-identity` reads that of a coding agent."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from endpick.api import CycleState, DataProducer, Endpoints, InferenceRequest, Parameters, PluginContext, RequestHeaderProcessor, Stability
from endpick.api.keys import AGENT_IDENTITY, SESSION_ID

SESSION_HEADERS = ("x-claude-code-session-id", "x-session-affinity", "session-id", "session_id")


def cookie(header: str, name: str) -> str:
    """The unquoted value of a cookie; empty if absent."""
    found = re.search(rf"(?:^|;)\s*{re.escape(name)}\s*=([^;]*)", header)
    value = found[1].strip() if found else ""
    return value[1:-1] if len(value) >= 2 and value[0] == value[-1] == '"' else value


class SessionIdParameters(Parameters):
    """Location of the session: exactly one of the two."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"headerName": "x-session-id"}]})

    header_name: Annotated[str, Field(alias="headerName", description="Header with the session; case-insensitive.")] = ""
    cookie_name: Annotated[str, Field(alias="cookieName", description="Cookie with the session; case-sensitive.")] = ""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if bool(self.header_name) == bool(self.cookie_name):
            raise ValueError("name the session's place: exactly one of headerName and cookieName")
        return self


class SessionIdProducer(DataProducer[SessionIdParameters]):
    """Reads the client session of a request, for plugins that keep sessions together.

    The value is opaque. A request without it, or with an empty one, has no session.
    """

    produces = (SESSION_ID,)

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        """Read the session."""
        if self.parameters.header_name:
            session = request.headers.get(self.parameters.header_name.lower(), "")
        else:
            session = cookie(request.headers.get("cookie", ""), self.parameters.cookie_name)
        if session:
            state.put(SESSION_ID, session)


class AgentIdentityParameters(Parameters):
    """Additional headers."""

    additional_session_headers: Annotated[
        tuple[str, ...],
        Field(alias="additionalSessionHeaders", max_length=64, description="Headers to look at first, in this order."),
    ] = ()


class AgentIdentity(RequestHeaderProcessor[AgentIdentityParameters]):
    """Reads the session of a coding agent, which is also the fairness id if the client sent none.

    The first non-empty header counts: those of `additionalSessionHeaders`, then `x-claude-code-session-id`, `x-session-affinity`,
    `session-id` and `session_id`.
    """

    produces = (AGENT_IDENTITY,)
    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: AgentIdentityParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._headers = (*(header.lower() for header in parameters.additional_session_headers), *SESSION_HEADERS)

    def request_headers(self, request: InferenceRequest, state: CycleState) -> None:
        """Read the identity."""
        for header in self._headers:
            identity = request.headers.get(header)
            if identity:
                state.put(AGENT_IDENTITY, identity)
                return
