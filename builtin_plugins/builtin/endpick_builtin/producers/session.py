"""Whose request it is: `session-id-producer` reads a client's session, `agent-identity` that of a coding agent."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from endpick.api import (
    AGENT_IDENTITY,
    SESSION_ID,
    CycleState,
    DataProducer,
    Endpoints,
    InferenceRequest,
    Parameters,
    PluginContext,
    RequestHeaderProcessor,
    Stability,
)

_MOST_MENTIONS = 1000
"""Of a cookie's name that are looked at: browsers keep some hundred cookies of a site."""


def cookie(header: str, name: str) -> str:
    """The value of one cookie in a `Cookie` header, without quotes around it; empty where it has none of that name."""
    # Looked for by its name: a client may send a hundred thousand others.
    at = header.find(name)
    for _ in range(_MOST_MENTIONS):
        if at < 0:
            break
        begin = header.rfind(";", 0, at) + 1
        end = header.find(";", at)
        pair = header[begin:] if end < 0 else header[begin:end]
        key, found, value = pair.partition("=")
        if found and key.strip() == name:
            value = value.strip()
            return value[1:-1] if len(value) >= 2 and value[0] == value[-1] == '"' else value
        at = -1 if end < 0 else header.find(name, end)
    return ""


class SessionIdParameters(Parameters):
    """Where the session stands: exactly one of the two."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"headerName": "x-session-id"}]})

    header_name: Annotated[str, Field(alias="headerName", description="The header that holds it; upper and lower case are the same.")] = ""
    cookie_name: Annotated[str, Field(alias="cookieName", description="The cookie that holds it; upper and lower case differ.")] = ""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if bool(self.header_name) == bool(self.cookie_name):
            raise ValueError("name the session's place: exactly one of headerName and cookieName")
        return self


class SessionIdProducer(DataProducer[SessionIdParameters]):
    """Read which session of a client the request belongs to, for plugins that keep sessions together.

    A request without the header or cookie, or with an empty one, has no session; the value itself is never looked into.
    """

    produces = (SESSION_ID,)

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        """Leave the session for the rest of the request."""
        named = self.parameters
        if named.header_name:
            session = request.headers.get(named.header_name.lower(), "")
        else:
            session = cookie(request.headers.get("cookie", ""), named.cookie_name)
        if session:
            state.put(SESSION_ID, session)


SESSION_HEADERS = ("x-claude-code-session-id", "x-session-affinity", "session-id", "session_id")


class AgentIdentityParameters(Parameters):
    """Where to look."""

    additional_session_headers: Annotated[
        tuple[str, ...],
        Field(alias="additionalSessionHeaders", max_length=64, description="Headers to look at first, in this order."),
    ] = ()


class AgentIdentity(RequestHeaderProcessor[AgentIdentityParameters]):
    """Read which session of a coding agent the request belongs to, and let it be the fairness id where the client sent none.

    The first header that is not empty counts: those of `additionalSessionHeaders`, then `x-claude-code-session-id`,
    `x-session-affinity`, `session-id` and `session_id`. A request without any of them goes on as it came.
    """

    produces = (AGENT_IDENTITY,)
    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: AgentIdentityParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._headers = (*(header.lower() for header in parameters.additional_session_headers), *SESSION_HEADERS)

    def request_headers(self, request: InferenceRequest, state: CycleState) -> None:
        """Leave the identity for the rest of the request."""
        for header in self._headers:
            identity = request.headers.get(header)
            if identity:
                state.put(AGENT_IDENTITY, identity)
                return
