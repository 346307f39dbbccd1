"""From the HTTP request as it came to the inference request that plugins see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import uuid4

from endpick.api.access import Access
from endpick.api.request import InferenceRequest
from endpick.api.requests import ParsedRequest, Rejection
from endpick.requests.decision import Refused
from endpick.requests.headers import FAIRNESS_ID, MODEL_REWRITE, OBJECTIVE, REQUEST_ID, first_of
from endpick.requests.incoming import IncomingRequest
from endpick.requests.parsing import CompiledParser, Parsers, path_of
from endpick.requests.refusals import CODE_OF, NO_MODEL, refused
from endpick.scheduling.step import Fault

DEFAULT_FAIRNESS_ID = "default-flow"
UNSEEN = ParsedRequest(needs_model=False)
"""What is known of a body that the gateway keeps to itself."""


@dataclass(frozen=True, slots=True)
class Intake:
    """A request that was understood."""

    request: InferenceRequest
    parser: CompiledParser | None
    """Who reads the response; None when nobody read the request."""
    body: bytes | None
    """The body to send instead of the one that came; None when nothing in it changed."""


def new_id() -> str:
    """An `x-request-id` for a request that came without."""
    return str(uuid4())


def take_in(incoming: IncomingRequest, parsers: Parsers, objectives: Mapping[str, int], access: Access) -> Intake | Refused:
    """Parse the body, resolve the model, and gather what the headers say; or say why that is impossible.

    Args:
        incoming: What the gateway sent.
        parsers: The plan's.
        objectives: Priority of each inference objective, by name; a name that is missing has priority 0, as in llm-d.
        access: Of the host.
    """
    headers = incoming.headers
    path = path_of(headers)
    if incoming.body is None:
        parser, parsed = None, UNSEEN
    else:
        parser = parsers.for_path(path)
        if parser is None:
            return Refused(400, CODE_OF[400], f"no parser is configured for path '{path}'")
        answer: object = parser.parse.run(access, path, headers, incoming.body)
        if not isinstance(answer, ParsedRequest):
            return refused(answer if isinstance(answer, Rejection | Fault) else parser.parse.fault(_not_parsed(answer)))
        parsed = answer

    target = first_of(headers, MODEL_REWRITE) or parsed.model
    if parsed.needs_model and not target:
        return NO_MODEL
    body = None
    if parser is not None and incoming.body is not None and target != parsed.model:
        rewritten = parser.rewrite_model.run(access, incoming.body, parsed, target)
        if not isinstance(rewritten, bytes):
            problem = f"answered {type(rewritten).__name__}, not the bytes of a body"
            return refused(rewritten if isinstance(rewritten, Fault) else parser.rewrite_model.fault(problem))
        body = None if rewritten == incoming.body else rewritten
    return Intake(_request(incoming, path, parsed, target, objectives), parser, body)


def _request(incoming: IncomingRequest, path: str, parsed: ParsedRequest, target: str, objectives: Mapping[str, int]) -> InferenceRequest:
    headers = incoming.headers
    objective = first_of(headers, OBJECTIVE)
    return InferenceRequest(
        id=headers.get(REQUEST_ID) or new_id(),
        model=target,
        incoming_model=parsed.model,
        path=path,
        headers={name: value for name, value in headers.items() if name[:1] != ":"},
        prompt=parsed.prompt,
        streaming=parsed.streaming,
        max_output_tokens=parsed.max_output_tokens,
        priority=objectives.get(objective, 0) if objective else 0,
        fairness_id=first_of(headers, FAIRNESS_ID) or DEFAULT_FAIRNESS_ID,
        cache_salt=parsed.cache_salt,
        size_bytes=len(incoming.body or b""),
        received_at=incoming.received_at,
        payload=parsed.payload,
    )


def _not_parsed(answer: object) -> str:
    return f"answered {type(answer).__name__}, not a ParsedRequest or Rejection"
