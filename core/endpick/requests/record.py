"""Decision records, which show why a request was routed to its endpoint."""

from __future__ import annotations

import math
import time
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum, StrEnum
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from endpick.api.endpoint import Endpoint
from endpick.api.endpoints import Endpoints, FloatArray
from endpick.api.keys import PREFIX_BLOCKS, TOKENIZED_PROMPT, PrefixBlocks
from endpick.api.request import InferenceRequest, JSONValue
from endpick.api.request_control import ResponseEnd, TerminationCause
from endpick.api.scheduling import SchedulingResult
from endpick.api.state import CycleState
from endpick.host.telemetry import FaultRecord
from endpick.requests.headers import OBJECTIVE, first_of
from endpick.requests.model import Refused
from endpick.scheduling.trace import UNREAD, WAITED, ProfileRecord, Waited, names_of

VERSION = 2
_FIRST_ERROR = 400
_FIRST_SERVER_ERROR = 500
SUBSET = "subset"  # in place of an instance: the gateway's subset hint


class Why(StrEnum):
    """Why a decision is recorded."""

    SAMPLED = "sampled"
    ASKED = "asked"  # by the client
    TRACED = "traced"  # its trace is sampled
    ERROR = "error"  # refused or failed; unless also sampled, without the answers of single plugins


@dataclass(frozen=True, slots=True)
class Removal:
    """Endpoints left out before scheduling, by a candidate filter or the subset hint."""

    instance: str
    type: str
    endpoints: tuple[str, ...]
    problem: str = ""


@dataclass(slots=True)
class Outcome:
    """How a routed request ended; `served_by` is the endpoint that the gateway reported, else the first pick."""

    cause: str
    status: int
    served_by: str
    gateway_error: str
    duration_seconds: float
    ttft_seconds: float | None
    response_bytes: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None


Values: TypeAlias = NDArray[np.float64] | NDArray[np.object_]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of the pool's columns at the decision. Per-request columns have no write times."""

    endpoints: tuple[Endpoint, ...]
    taken_at: float
    columns: Mapping[str, tuple[Values, FloatArray | None]]

    @property
    def cells(self) -> int:
        """The number of values, which counts towards limits on memory."""
        return len(self.endpoints) * len(self.columns)


def snapshot(candidates: Endpoints, state: CycleState) -> Snapshot:
    """Copy the columns of the pool and of the request."""
    generation = candidates._generation
    columns: dict[str, tuple[Values, FloatArray | None]] = {
        name: (column.values.copy(), column.written_at.copy()) for name, column in generation.columns.items()
    }
    for name, (view, values) in state._columns.items():
        if view._generation is generation:
            columns[name] = values, None
    return Snapshot(generation.endpoints, generation.clock(), columns)


@dataclass(frozen=True, slots=True)
class RequestShape:
    """What a request was, without its text, so that it can be decided again.

    Attributes:
        prompt_tokens: From a `token-producer`, else bytes / 4.
        blocks: None without a prefix producer. Encoded when the record is written, which most are not.
    """

    prompt_tokens: int
    blocks: PrefixBlocks | None
    streaming: bool
    max_output_tokens: int | None
    objective: str

    @classmethod
    def of(cls, request: InferenceRequest, state: CycleState) -> RequestShape:
        """Return the shape of a request, from the data that the producers put into `state`."""
        tokenized = state._values.get(TOKENIZED_PROMPT.name)
        tokens = sum([len(prompt.token_ids) for prompt in tokenized]) if isinstance(tokenized, tuple) else request.prompt.estimated_tokens
        blocks = state._values.get(PREFIX_BLOCKS.name)
        objective = first_of(request.headers, OBJECTIVE) or ""
        found = blocks if isinstance(blocks, PrefixBlocks) else None
        return cls(tokens, found, request.streaming, request.max_output_tokens, objective)

    def document(self) -> dict[str, JSONValue]:
        """Return the shape as a JSON object, with camelCase names."""
        blocks = self.blocks
        return {
            "promptTokens": self.prompt_tokens,
            "blockTokens": 0 if blocks is None else blocks.block_size_tokens,
            "blocks": "" if blocks is None else b64encode(blocks.identities()).decode(),
            "streaming": self.streaming,
            "maxOutputTokens": self.max_output_tokens,
            "objective": self.objective,
        }


class RecordedSpan(Protocol):
    """The span of a traced request: headers that continue the trace at the model server, and the trace id."""

    headers: Mapping[str, str]
    trace_id: str


@dataclass(slots=True, eq=False)
class DecisionRecord:
    """The record of one request; the director and the exchange fill it in until the request ends."""

    why: Why
    plan: str
    id: str
    model: str
    path: str
    priority: int
    fairness_id: str
    time: float = field(default_factory=time.time)
    request: RequestShape | None = None
    snapshot: Snapshot | None = None
    removed: list[Removal] = field(default_factory=list)
    candidates: tuple[str, ...] = ()
    runs: list[ProfileRecord] = field(default_factory=list)
    faults: list[FaultRecord] = field(default_factory=list)
    destinations: tuple[str, ...] = ()
    status: int | None = None
    refusal: str = ""
    waited: Waited | None = None
    unread: str = ""
    schedule_seconds: float = 0.0
    decide_seconds: float = 0.0
    outcome: Outcome | None = None
    notes: dict[str, dict[str, str | float | bool]] = field(default_factory=dict)
    trace_id: str = ""
    span: RecordedSpan | None = None

    @classmethod
    def of(cls, request: InferenceRequest, plan: str, why: Why) -> DecisionRecord:
        """Return a record without results. It keeps names only, never bodies."""
        return cls(why, plan, request.id, request.model, request.path, request.priority, request.fairness_id)

    @property
    def cells(self) -> int:
        """The number of values and block hashes, which counts towards limits on memory."""
        blocks = None if self.request is None else self.request.blocks
        return (0 if self.snapshot is None else self.snapshot.cells) + (0 if blocks is None else blocks.total_blocks)

    @property
    def is_refused(self) -> bool:
        """True for a refusal, and for a direct response with an error status."""
        return self.status is not None and self.status >= _FIRST_ERROR

    @property
    def has_failed(self) -> bool:
        """True if the request was refused or its response failed."""
        return self.is_refused or (self.outcome is not None and is_failure(self.outcome.cause, self.outcome.status))

    def concerns(self, endpoint: str) -> bool:
        """Return True if the endpoint, named with or without its namespace, was in the pool."""
        known = () if self.snapshot is None else self.snapshot.endpoints
        return any(endpoint in (member.name, member.name.rpartition("/")[2], member.address) for member in known)

    def begin_scheduling(self, request: InferenceRequest, candidates: Endpoints, state: CycleState) -> None:
        """Record the request and its candidates before scheduling."""
        self.request = RequestShape.of(request, state)
        self.snapshot = snapshot(candidates, state)
        self.candidates = names_of(candidates)
        self.waited = state.get(WAITED)
        self.unread = state.get(UNREAD) or ""

    def decided(self, result: SchedulingResult, schedule_seconds: float, decide_seconds: float) -> None:
        """Record the scheduling result and both durations, in seconds."""
        self.destinations = result.destinations
        self.schedule_seconds, self.decide_seconds = schedule_seconds, decide_seconds

    def refused(self, refusal: Refused) -> None:
        """Record the status and message of a refusal."""
        self.status, self.refusal = refusal.status, refusal.message

    def ended(self, end: ResponseEnd) -> None:
        """Record the outcome once the response has ended."""
        usage = end.usage
        self.outcome = Outcome(
            end.cause.value,
            end.status,
            "" if end.endpoint is None else end.endpoint.name,
            end.gateway_error,
            end.duration_seconds,
            end.ttft_seconds,
            end.response_bytes,
            None if usage is None else usage.prompt_tokens,
            None if usage is None else usage.completion_tokens,
            None if usage is None else usage.cached_tokens,
        )


def is_failure(cause: str, status: int) -> bool:
    """Return True for broken responses and server errors, whose decisions are always recorded."""
    return status >= _FIRST_SERVER_ERROR or cause == TerminationCause.ERROR


class DecisionLog(Protocol):
    """Selects the decisions to record, and stores the finished records."""

    def begin(self, request: InferenceRequest, plan: str) -> DecisionRecord | None:
        """Return a record for the director to fill in, or None to skip the request."""

    def finish(self, record: DecisionRecord) -> None:
        """Store a record. Called once per record, at the refusal or the end of the response."""


def document_of(record: DecisionRecord, *, values: bool = True) -> dict[str, JSONValue]:
    """Return the record as JSON; `endpick schema decision` prints its schema. `values` includes endpoint data."""
    document: dict[str, JSONValue] = {"version": VERSION}
    for name, shown in _names(DecisionRecord):
        if name == "snapshot":
            document["endpoints"] = _endpoints(record.snapshot) if values and record.snapshot is not None else []
        elif name == "request":
            document["request"] = None if record.request is None else record.request.document()
        elif name == "span":
            continue
        elif name == "time":
            document["time"] = to_time(record.time)
        else:
            document[shown] = to_json(getattr(record, name))
    return document


def _endpoints(taken: Snapshot) -> list[JSONValue]:
    rows: list[tuple[dict[str, JSONValue], dict[str, JSONValue]]] = [({}, {}) for _ in taken.endpoints]
    for name, (column, written_at) in taken.columns.items():
        ages = None if written_at is None else (taken.taken_at - written_at).round(4).tolist()
        for row, value in enumerate(column.tolist()):
            if not is_missing(value):
                rows[row][0][name] = to_json(value)
                if ages is not None:
                    rows[row][1][name] = ages[row]
    return [
        {"name": endpoint.name, "address": endpoint.address, "labels": dict(endpoint.labels), "values": values, "ages": ages}
        for endpoint, (values, ages) in zip(taken.endpoints, rows, strict=True)
    ]


def is_missing(value: object) -> bool:
    """Return True for None and NaN, the content of an empty cell."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def to_json(value: object) -> JSONValue:
    """Convert a value to plain data: field names in camelCase; NaN and infinity become null."""
    if type(value) is float:  # the most frequent first: a record has a thousand values
        return value if math.isfinite(value) else None
    if value is None or type(value) is str or type(value) is int or type(value) is bool:
        return value
    if isinstance(value, Enum):
        return to_json(value.value)
    if is_dataclass(value):
        return {shown: to_json(getattr(value, name)) for name, shown in _names(value.__class__)}
    if isinstance(value, Mapping):
        return {str(name): to_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted((to_json(inner) for inner in value), key=str)
    if isinstance(value, np.generic):
        return to_json(value.item())
    return value if isinstance(value, int | str) else str(value)


@lru_cache(maxsize=256)
def _names(kind: type[Any]) -> tuple[tuple[str, str], ...]:
    return tuple([(attribute.name, _camel_case(attribute.name)) for attribute in fields(kind)])


def to_time(unix_seconds: float) -> str:
    """Format Unix seconds as ISO 8601 in UTC, with milliseconds."""
    return datetime.fromtimestamp(unix_seconds, UTC).isoformat(timespec="milliseconds")


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
