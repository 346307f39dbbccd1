"""Recorded decisions: read as a trace, and written by a simulation."""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, BinaryIO, Literal

import numpy as np
import orjson
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from endpick.api.request import InferenceRequest
from endpick.diagnostics import Code, Diagnostic, Span
from endpick.requests.record import VERSION, DecisionRecord, Why, document_of
from endpick_lab.trace import MOONCAKE_BLOCK_TOKENS, MOST_TOKENS, TraceError, TraceRequest

_MARK = b'"fairnessId"'  # in every record, in no other trace
_IDENTITY_BYTES = 8
_Tokens = Annotated[int, Field(ge=0, le=MOST_TOKENS)]


class DecisionsError(TraceError):
    """Raised if a file of decisions cannot be used; `diagnostic` has the place and the reason."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)


class RecordedShape(_Part):
    """The shape of a request."""

    prompt_tokens: _Tokens
    block_tokens: _Tokens
    blocks: str
    streaming: bool
    objective: str

    def chained(self) -> tuple[int, ...]:
        """A number for each block; equal numbers are equal blocks with equal predecessors."""
        chain, before = [], 0
        for identity in np.frombuffer(b64decode(self.blocks), "<u8").tolist():
            before = hash((before, identity))
            chain.append(before)
        return tuple(chain)


class _Outcome(_Part):
    completion_tokens: _Tokens | None


class _Values(_Part):
    address: Annotated[str, Field(pattern=r":\d{1,5}$")]
    values: dict[str, object]


class RecordedDecision(_Part):
    """The part of a record that a trace needs."""

    version: Literal[2]
    why: Why
    id: str
    model: str
    fairness_id: str
    time: AwareDatetime
    request: RecordedShape | None
    outcome: _Outcome | None
    endpoints: tuple[_Values, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """The time of a record, and its place in the file."""

    at: float  # Unix seconds
    line: int
    offset: int


@dataclass(frozen=True, slots=True)
class Decisions:
    """The records of a file in order of time; `warnings` list omissions."""

    path: Path
    places: tuple[Place, ...]
    warnings: tuple[Diagnostic, ...]

    def lines(self) -> Iterator[tuple[Place, bytes]]:
        """Yield one record after the other, as a night's records do not fit into memory. Raises OSError."""
        with self.path.open("rb") as file:
            for place in self.places:
                file.seek(place.offset)
                yield place, file.readline()

    def trace(self) -> list[TraceRequest]:
        """Return the requests of the records, in order of time; raises OSError."""
        records = [RecordedDecision.model_validate_json(line) for _, line in self.lines()]
        shapes = [record.request for record in records if record.request is not None]
        sizes = Counter(shape.block_tokens for shape in shapes if shape.block_tokens)
        size = sizes.most_common(1)[0][0] if sizes else MOONCAKE_BLOCK_TOKENS
        outcomes = [record.outcome for record in records if record.outcome is not None]
        outputs = [outcome.completion_tokens for outcome in outcomes if outcome.completion_tokens]
        usual = round(median(outputs)) if outputs else 1
        adapters = _adapters(records)
        start = self.places[0].at
        return [
            _request(place.at - start, number, record, shape, size, usual, adapters)
            for number, (place, record, shape) in enumerate(zip(self.places, records, shapes, strict=True))
        ]


def _request(
    at: float, number: int, record: RecordedDecision, shape: RecordedShape, size: int, usual: int, adapters: frozenset[str]
) -> TraceRequest:
    prompt = max(shape.prompt_tokens, 1)
    wanted = -(-prompt // size)
    known = shape.chained()[:wanted] if shape.block_tokens == size else ()
    fresh = range(-number * 2**20, -number * 2**20 + wanted - len(known))  # no other request has these blocks
    output = record.outcome.completion_tokens if record.outcome is not None else None
    headers = {"x-llm-d-inference-fairness-id": record.fairness_id}
    if shape.objective:
        headers["x-llm-d-inference-objective"] = shape.objective
    adapter = record.model if record.model in adapters else None
    return TraceRequest(at, prompt, output or usual, (*known, *fresh), size, adapter, shape.streaming, headers)


def _adapters(records: Sequence[RecordedDecision]) -> frozenset[str]:
    """The names of adapters that some server had loaded."""
    found: set[str] = set()
    for record in records:
        for endpoint in record.endpoints:
            loaded = endpoint.values.get("lora-adapters")
            if isinstance(loaded, dict):
                found.update(loaded.get("running", ()), loaded.get("waiting", ()))
    return frozenset(found)


def holds_decisions(path: Path) -> bool:
    """Return whether a file holds records, by its first line; raises OSError."""
    with path.open("rb") as file:
        return _MARK in file.readline()


def read_decisions(path: Path) -> Decisions:
    """Check all records, and sort them by time, as they are written when requests end.

    Raises OSError, DecisionsError.
    """
    places: list[Place] = []
    unusable = 0
    torn = False
    with path.open("rb") as file:
        offset = 0
        for number, line in enumerate(file, 1):
            place, offset = offset, offset + len(line)
            if not line.strip():
                continue
            try:
                record = RecordedDecision.model_validate_json(line)
            except ValidationError as error:
                torn = not line.endswith(b"\n") and bool(places) and error.errors()[0]["type"] == "json_invalid"
                if torn:
                    break  # the process was writing it when it was stopped, or still is
                raise DecisionsError(mistake(path, number, error)) from error
            if record.request is None or record.why is Why.ERROR:
                unusable += 1
            elif not _has_whole_blocks(record.request):
                raise DecisionsError(_refusal(path, number, "request.blocks: it is not base64 of 8 bytes for each block"))
            else:
                places.append(Place(record.time.timestamp(), number, place))
    if not places:
        problem = f"none of the {unusable} records says what its request was" if unusable else "it has no records"
        raise DecisionsError(_refusal(path, 1, problem))
    warnings = []
    if unusable:
        message = f"{unusable} requests that were refused before scheduling, or recorded for their errors only, are left out"
        warnings.append(Diagnostic(Code.W0801, message, Span.start_of(str(path))))
    if torn:
        span = Span(str(path), number, 1, number, 1)
        warnings.append(Diagnostic(Code.W0801, "the last record is incomplete and left out", span))
    return Decisions(path, tuple(sorted(places, key=lambda place: (place.at, place.line))), tuple(warnings))


def _has_whole_blocks(shape: RecordedShape) -> bool:
    try:
        return len(b64decode(shape.blocks, validate=True)) % _IDENTITY_BYTES == 0
    except ValueError:
        return False


def mistake(path: Path, line: int, error: ValidationError) -> Diagnostic:
    """Build the diagnostic of an invalid record."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"])) or "the record"
    if first["loc"] == ("version",):
        return _refusal(path, line, f"a record of version {first['input']} was found; this endpick reads version {VERSION}")
    return _refusal(path, line, f"{where}: {first['msg'][0].lower()}{first['msg'][1:]}")


def _refusal(path: Path, line: int, problem: str) -> Diagnostic:
    return Diagnostic(
        Code.E0810,
        f"the recorded decisions cannot be used: {problem}",
        Span(str(path), line, 1, line, 1),
        help="record them with `endpick serve --decision-sampling 1 --decision-log FILE` of this version",
    )


class RecordWriter:
    """The `DecisionLog` of a simulation: writes every record to a file, with virtual times."""

    def __init__(self, file: BinaryIO, clock: Callable[[], float]) -> None:
        self._file = file
        self._clock = clock

    def begin(self, request: InferenceRequest, plan: str) -> DecisionRecord:
        record = DecisionRecord.of(request, plan, Why.SAMPLED)
        record.time = self._clock()
        return record

    def finish(self, record: DecisionRecord) -> None:
        self._file.write(orjson.dumps(document_of(record)) + b"\n")
