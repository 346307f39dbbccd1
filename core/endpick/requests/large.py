"""Large bodies, which the request path hands to another process instead of parsing them itself, and the decision that follows then.

Coroutines, which the compiled build leaves to Python: that is why they do not stand in `intake`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from endpick.api.request import ParsedRequest, Rejection
from endpick.data.model_rules import NO_REWRITES, RewriteTable, choose_model
from endpick.host.apart import apart
from endpick.host.boundary import Fault
from endpick.host.instance import Instance
from endpick.requests.intake import DEFAULT_FAIRNESS_ID, ReadElsewhere, controls_of, path_of
from endpick.requests.long_body import Body
from endpick.requests.model import Decision, IncomingRequest, Refused, Routed, refused
from endpick.requests.parsers import UNSEEN, Parsers, no_parser, unread_refusal


@dataclass(frozen=True, slots=True)
class LargeBody:
    """A body that is to be parsed elsewhere.

    Attributes:
        instance: The parser: what parses the body behaves as it does.
        path: Without query.
        headers: As the parser would get them.
        body: The whole of it.
        rewrite: The model that the request is for, where the client's headers say so; the body is to name it.
        fairness_id: Whose it is, so that bodies of one do not keep those of all others waiting.
        rewrites: By which the request may be for another model, before `rewrite`.
        draw: For `choose_model`.
    """

    instance: Instance
    path: str
    headers: Mapping[str, str]
    body: Body
    rewrite: str | None
    fairness_id: str
    rewrites: RewriteTable = field(default_factory=dict)
    draw: float = 0.0


@dataclass(frozen=True, slots=True)
class BodyRead:
    """What the parser read.

    Attributes:
        parsed: Its `payload` is None.
        body: The body to send instead of the one that came; None when nothing in it changed.
        seconds: How long the parser took.
    """

    parsed: ParsedRequest
    body: Body | None
    seconds: float


class ElsewhereError(Exception):
    """What the parser raised in the other process, or why its answer could not be used."""


@dataclass(frozen=True, slots=True)
class ParserFailed:
    """The parser raised, or answered nonsense: a fault of its instance."""

    method: Literal["parse", "rewrite_model"]
    problem: ElsewhereError
    seconds: float


class LargeBodyReader(Protocol):
    """Parses large bodies elsewhere; one for all requests of a process."""

    @property
    def threshold_bytes(self) -> int:
        """A body of more bytes than this is large."""

    @property
    def threshold_weight(self) -> int:
        """A body of more structure than this is large as well: see `endpick.requests.weight`."""

    async def read(self, large: LargeBody) -> BodyRead | Rejection | ParserFailed | Refused:
        """What the parser says; `Refused` when the body could not be brought to it, or took too much. Cancelled when its stream ends."""


async def read_elsewhere(
    incoming: IncomingRequest, parsers: Parsers, reader: LargeBodyReader, rewrites: RewriteTable = NO_REWRITES, draw: float = 0.0
) -> ReadElsewhere | Refused:
    """Have the body of a request parsed; what `build_request` does with the small ones. `draw` is for `choose_model`."""
    assert incoming.body is not None
    path = path_of(incoming.headers)
    parser = parsers.for_path(path)
    if parser is None:
        return no_parser(path)
    step = parser.parse
    rewrite, _, fairness_id = controls_of(incoming.headers)
    if step.breaker.state and not step.admitted():
        return _unread(step.left_out(), rewrite, rewrites)
    whose = fairness_id or DEFAULT_FAIRNESS_ID
    large = LargeBody(step.instance, path, incoming.headers, incoming.body, rewrite, whose, rewrites, draw)
    answer = await reader.read(large)
    if isinstance(answer, Refused):
        return answer
    if isinstance(answer, Rejection):
        return refused(answer)
    step.timer.observe(answer.seconds)
    if isinstance(answer, ParserFailed):
        if answer.method == "parse":
            return _unread(step.fault(answer.problem), rewrite, rewrites)
        return refused(parser.rewrite_model.fault(answer.problem))
    model = answer.parsed.model
    return ReadElsewhere(parser, answer.parsed, answer.body, choose_model(rewrites, model, draw) or rewrite or model)


def _unread(fault: Fault, rewrite: str | None, rewrites: RewriteTable) -> ReadElsewhere | Refused:
    """How a request goes on whose parser has failed."""
    return unread_refusal(fault, rewrite, rewrites) or ReadElsewhere(None, UNSEEN, None, "", str(fault))


async def decided_after(
    read: Callable[[], Awaitable[ReadElsewhere | Refused]], decide: Callable[[ReadElsewhere | Refused], Decision | Awaitable[Decision]]
) -> Decision:
    """What `decide` makes of the body once it has been read; a stream that ends before that leaves no coroutine that was never awaited."""
    body = await read()
    with apart():
        decision = decide(body)
    return decision if isinstance(decision, Routed | Refused) else await decision
