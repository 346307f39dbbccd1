"""How a request is refused: the codes llm-d gives to HTTP statuses, and the refusals that the host itself decides on."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from endpick.api.requests import Rejection
from endpick.requests.decision import Refused
from endpick.scheduling.step import Fault

CODE_OF: Mapping[int, str] = MappingProxyType(
    {
        400: "BadRequest",
        401: "Unauthorized",
        403: "Forbidden",
        404: "NotFound",
        412: "PreconditionFailed",
        429: "ResourceExhausted",
        500: "Internal",
        503: "ServiceUnavailable",
    }
)

NO_CANDIDATES = Refused(503, CODE_OF[503], "failed to find endpoint candidates for serving the request", reason="rejected-no-endpoints")
SATURATED = Refused(429, CODE_OF[429], "system saturated, sheddable request dropped", reason="rejected-saturated")
NO_MODEL = Refused(400, CODE_OF[400], "model not found in request body")
NOTHING_CACHED = Refused(412, CODE_OF[412], "no endpoint has the beginning of this prompt in its cache, and the client asked for that")


def refused(why: Rejection | Fault) -> Refused:
    """The answer to the client: what a plugin decided, or that one failed and the operator wants the request refused then."""
    if isinstance(why, Fault):
        return Refused(500, CODE_OF[500], f"plugin '{why.instance}' failed")
    return Refused(why.status, CODE_OF.get(why.status, "Rejected"), why.message, why.reason or None)
