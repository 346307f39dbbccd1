"""From the HTTP request as it came to the inference request that plugins see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from types import MappingProxyType, NoneType
from typing import Final
from uuid import uuid4

import numpy as np

from endpick.api.access import Access
from endpick.api.endpoints import Endpoints
from endpick.api.request import InferenceRequest, ParsedRequest, Prompt, Rejection, check_headers, shown
from endpick.api.request_control import MetadataValue
from endpick.data.model_rules import NO_REWRITES, ModelRules, choose_model
from endpick.host.boundary import Fault
from endpick.host.failures import CALL_FAILURES, kind_of
from endpick.requests.long_body import Body
from endpick.requests.memory import parsed_size, unparsed_size
from endpick.requests.model import LONG_NAME, NO_MODEL, IncomingRequest, Refused, plain_rejection, refused
from endpick.requests.parsers import UNSEEN, CompiledParser, Parsers, no_parser, unread_refusal

REQUEST_ID: Final = "x-request-id"
FAIRNESS_ID: Final = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
OBJECTIVE: Final = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
MODEL_REWRITE: Final = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
PATH: Final = (":path", "x-original-path", "x-forwarded-path")
"""Where the path of the request is found; the first that is present counts."""

OWNED: Final = frozenset(
    (
        *FAIRNESS_ID,
        *OBJECTIVE,
        *MODEL_REWRITE,
        "x-gateway-destination-endpoint",
        "x-gateway-destination-endpoint-served",
        "x-gateway-destination-endpoint-subset",
        "content-length",
    )
)
"""Set by the client to control the picker, or by the picker itself: nothing that a plugin may set for the model server."""


CONTROLS: Final = frozenset((*FAIRNESS_ID, *OBJECTIVE, *MODEL_REWRITE))
NO_CONTROLS: Final[tuple[str | None, str | None, str | None]] = (None, None, None)
"""What `controls_of` finds in nearly every request."""


def controls_of(headers: Mapping[str, str]) -> tuple[str | None, str | None, str | None]:
    """What the client asks of the picker: another model, an objective, a fairness id."""
    return first_of(headers, MODEL_REWRITE), first_of(headers, OBJECTIVE), first_of(headers, FAIRNESS_ID)


def first_of(headers: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """The value of the first of these headers that is there and not empty."""
    for name in names:
        value = headers.get(name)
        if value:
            return value
    return None


def plain_text(text: str) -> str:
    """A plugin's text as it is, of no class of its own. Raises UnicodeEncodeError for half a surrogate pair: no gateway is told one."""
    plain = str.__str__(text)
    plain.encode()
    return plain


def plain_value(value: MetadataValue) -> MetadataValue:
    """The same for any value of metadata. Raises OverflowError for a number that is none there."""
    if isinstance(value, str):
        return plain_text(value)
    return value if isinstance(value, bool) else float(value)


MOST_ADDED: Final = 1 << 16
"""Characters of headers and metadata that plugins add to a request, or to its response: gateways take little more."""


class HeadersForUpstream:
    """The `UpstreamHeaders` of one request: pre-requests have this very object, and its host reads what they may not assign to."""

    __slots__ = ("_added", "_metadata", "_removed", "_values")

    def __init__(self, values: Mapping[str, str], removed: tuple[str, ...] = ()) -> None:
        self._removed = removed
        self._values = {name.lower(): value for name, value in values.items() if name.lower() not in OWNED} if values else {}
        self._metadata: dict[str, dict[str, MetadataValue]] = {}
        self._added = 0

    def set_metadata(self, namespace: object, key: object, value: object) -> None:
        """See `UpstreamHeaders.set_metadata`; what a plugin passes is believed only once it has been looked at."""
        if not isinstance(namespace, str) or not isinstance(key, str) or not isinstance(value, str | float | int):
            raise TypeError(f"metadata {shown(namespace)}, {shown(key)} is set to {shown(value)}; it takes strings, numbers and booleans")
        name, entry, plain = plain_text(namespace), plain_text(key), plain_value(value)
        self._take(len(name) + len(entry) + (len(plain) if isinstance(plain, str) else 0))
        self._metadata.setdefault(name, {})[entry] = plain

    def set(self, name: str, value: str) -> None:
        """See `UpstreamHeaders.set`."""
        check_headers(((name, value),))
        lowered, plain = _for_plugins(name), plain_text(value)
        self._take(len(lowered) + len(plain))
        self._values[lowered] = plain

    def remove(self, name: str) -> None:
        """See `UpstreamHeaders.remove`."""
        check_headers(((name, ""),))
        lowered = _for_plugins(name)
        self._take(len(lowered))
        self._values.pop(lowered, None)
        self._removed = (*self._removed, lowered)

    def _take(self, characters: int) -> None:
        self._added += characters
        if self._added > MOST_ADDED:
            raise ValueError(f"plugins add more than {MOST_ADDED} characters of headers and metadata to the request")


def _for_plugins(name: str) -> str:
    """The name in lower case, of a header that plugins may change."""
    lowered = str.__str__(name).lower()
    if lowered in OWNED or lowered.startswith(":"):
        raise ValueError(f"header '{lowered}' belongs to endpick and cannot be set by a plugin")
    return lowered


DEFAULT_PATH: Final = "/v1/completions"


DEFAULT_FAIRNESS_ID: Final = "default-flow"


class BuiltRequest:
    """A request that was understood."""

    __slots__ = ("body", "parsed_bytes", "parser", "request", "unread")

    def __init__(
        self, request: InferenceRequest, parser: CompiledParser | None, body: Body | None, parsed_bytes: int, unread: str = ""
    ) -> None:
        self.request = request
        self.parser = parser
        """Reads the response, too; None when no parser read the request, or its answer is to be left alone."""
        self.body = body
        """The body to send instead of the one that came; None when nothing in it changed."""
        self.parsed_bytes = parsed_bytes
        """What the body became takes so much, about."""
        self.unread = unread
        """Why the parser, which may be skipped, did not read the body; empty where it did."""


@dataclass(slots=True)
class ReadElsewhere:
    """A body that another process has parsed, and in which it has exchanged the model where the client's headers ask for that."""

    parser: CompiledParser | None
    parsed: ParsedRequest
    body: Body | None
    """As that of `BuiltRequest`, like `parser`."""
    target: str
    """The model that the request is for; empty for none."""
    unread: str = ""
    """As that of `BuiltRequest`."""


_USUAL_KINDS: Final = ((ParsedRequest, str, str, bool, NoneType), (ParsedRequest, str, str, bool, int))


def plainly(parsed: ParsedRequest) -> ParsedRequest:
    """A copy that nothing but endpick holds, checked anew: frozen classes can be changed, and a subclass may answer with code of its own.

    Raises:
        Anything: a field is not what it has to be, or raises when it is looked at.
    """
    tokens: int | None = parsed.max_output_tokens
    plain_tokens = None if tokens is None else int.__int__(tokens)
    streaming = bool(parsed.streaming)
    needs_model, skip_response = bool(parsed.needs_model), bool(parsed.skip_response)
    prompt = parsed.prompt
    if type(prompt) is not Prompt and isinstance(prompt, Prompt):  # one of another class is asked where what it answers is looked at
        prompt = Prompt(partial(getattr, prompt, "texts"), partial(getattr, prompt, "pieces"))
    return ParsedRequest(parsed.model, prompt, streaming, plain_tokens, parsed.cache_salt, parsed.payload, needs_model, skip_response)


def new_id() -> str:
    """An `x-request-id` for a request that came without."""
    return str(uuid4())


def path_of(headers: Mapping[str, str]) -> str:
    """The path of a request without its query."""
    return (headers.get(":path") or first_of(headers, PATH) or DEFAULT_PATH).partition("?")[0]


def build_request(
    incoming: IncomingRequest,
    parsers: Parsers,
    objectives: Mapping[str, int],
    access: Access,
    max_name_characters: int,
    read: ReadElsewhere | None = None,
    rules: ModelRules | None = None,
    random: Random | None = None,
) -> BuiltRequest | Refused:
    """Parse the body, resolve the model, and gather what the headers say; or say why that is impossible.

    Args:
        incoming: What the gateway sent.
        parsers: The plan's.
        objectives: Priority of each inference objective, by name; a name that is missing has priority 0, as in llm-d.
        access: Of the host.
        max_name_characters: Of a model, a cache salt and a fairness id; what is longer is refused.
        read: The body, where it has been parsed already.
        rules: What the discovery says about models; None for nothing. Objectives of the plan count before those of the discovery, and as
            in llm-d, a rewrite that the discovery knows counts before the one that the client asks for.
        random: Chooses among the targets of a rewrite; needed where there are any.
    """
    headers = incoming.headers
    came: Body | None = incoming.body
    body: Body | None = None
    # `path_of` without the call, which each request would pay for.
    path = (headers.get(":path") or first_of(headers, PATH) or DEFAULT_PATH).partition("?")[0]
    unread = ""
    if read is not None:
        parser, parsed, body, unread = read.parser, read.parsed, read.body, read.unread
    elif came is None:
        parser, parsed = None, UNSEEN
    else:
        assert isinstance(came, bytes), "a long body is read elsewhere, or joined before"
        parser = parsers.usual.get(path) or parsers.for_path(path)
        if parser is None:
            return no_parser(path)
        step = parser.parse
        answer = step.run(access, path, MappingProxyType(headers), came)
        try:
            if isinstance(answer, ParsedRequest):
                kinds = type(answer), type(answer.model), type(answer.cache_salt), type(answer.streaming), type(answer.max_output_tokens)
                usual = kinds in _USUAL_KINDS and type(answer.prompt) is Prompt
                if not usual or answer.needs_model is not True or answer.skip_response is not False:
                    answer = plainly(answer)
            elif isinstance(answer, Rejection):
                answer = plain_rejection(answer)
            elif not isinstance(answer, Fault):
                answer = step.fault(f"answered {kind_of(answer)}, not a ParsedRequest or Rejection")
        except CALL_FAILURES as problem:
            answer = step.fault(problem)
        if isinstance(answer, ParsedRequest):
            parsed = answer
            parsed.prompt._parser = step
        elif isinstance(answer, Fault):
            refusal = unread_refusal(answer, first_of(headers, MODEL_REWRITE), NO_REWRITES if rules is None else rules.rewrites)
            if refusal is not None:
                return refusal
            parser, parsed, unread = None, UNSEEN, str(answer)
        else:
            assert isinstance(answer, Rejection)
            return refused(answer)

    rewrite, objective, fairness_id = NO_CONTROLS if CONTROLS.isdisjoint(headers) else controls_of(headers)
    if read is not None:
        target = read.target
    else:
        target = rewrite or parsed.model
        if rules is not None and rules.rewrites and parser is not None and random is not None:
            target = choose_model(rules.rewrites, parsed.model, random.random()) or target
    if parsed.needs_model and not target:
        return NO_MODEL
    salt, longest = parsed.cache_salt, max_name_characters
    if len(parsed.model) > longest or len(target) > longest or len(salt) > longest or (fairness_id and len(fairness_id) > longest):
        return LONG_NAME
    if read is None and parser is not None and came is not None and target != parsed.model:
        rewritten = parser.rewrite_model.run(access, came, plainly(parsed), target)
        if type(rewritten) is not bytes:  # not `isinstance`, which asks the answer, and lets classes pass that compare as they like
            wrong = f"answered {kind_of(rewritten)}, not the bytes of a body"
            return refused(rewritten if type(rewritten) is Fault else parser.rewrite_model.fault(wrong))
        body = None if rewritten == came else rewritten
    size_bytes = 0 if came is None else len(came)
    plain = {**headers}
    for name in headers:
        if name and name[0] == ":":
            del plain[name]
    # By position, in the order of the fields: with names, Python first makes a dictionary of them.
    request = InferenceRequest(
        headers.get(REQUEST_ID) or new_id(),
        target,
        parsed.model,
        path,
        MappingProxyType(plain),
        parsed.prompt,
        parsed.streaming,
        parsed.max_output_tokens,
        priority_of(objective, objectives, rules) if objective else 0,
        fairness_id or DEFAULT_FAIRNESS_ID,
        salt,
        size_bytes,
        incoming.received_at,
        MappingProxyType(parsed.payload) if type(parsed.payload) is dict else parsed.payload,
    )
    if came is None:
        parsed_bytes = 0
    elif parsed.payload is None or not isinstance(came, bytes):
        parsed_bytes = unparsed_size(came)
    else:
        parsed_bytes = parsed_size(came, incoming.structure)
    return BuiltRequest(request, None if parsed.skip_response else parser, body, parsed_bytes, unread)


def priority_of(objective: str, objectives: Mapping[str, int], rules: ModelRules | None) -> int:
    """Of an objective that a client names; 0 for one that is not known."""
    return objectives.get(objective, 0 if rules is None else rules.objectives.get(objective, 0))


def within(subset: Iterable[str] | None, endpoints: Endpoints) -> Endpoints:
    """The endpoints that the hint allows.

    Args:
        subset: Entries `host:port` (IPv6 in brackets), or a host alone, with or without brackets, which allows every port of it.
            None allows everything, no entries nothing.
        endpoints: All there are.
    """
    if subset is None:
        return endpoints
    allowed = frozenset(_bare(entry) for entry in subset)
    members = endpoints.members
    keep = np.fromiter((e.address in allowed or e.host in allowed for e in members), dtype=np.bool_, count=len(members))
    return endpoints.where(keep)


def _bare(entry: str) -> str:
    return entry[1:-1] if entry.startswith("[") and entry.endswith("]") else entry
