"""Traces: the requests of a simulation, read from files."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Annotated

import orjson
from pydantic import BaseModel, Field, ValidationError

MOONCAKE_BLOCK_TOKENS = 512
MOST_TOKENS = 10_000_000
LONGEST_ROUNDING_SECONDS = 5.0
BYTES_PER_TOKEN = 4  # as endpick estimates without a tokenizer


class TraceError(ValueError):
    """Raised if a file is not a trace; the message has the place and the reason."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        at: Seconds after the start.
        blocks: The prompt as a number for each block of `block_tokens` tokens, the last may be partial. Equal numbers are equal
            blocks with equal predecessors.
    """

    at: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    block_tokens: int
    adapter: str | None = None
    stream: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """Return the prompt as text: four characters for each token, equal for equal blocks."""
        characters = self.block_tokens * BYTES_PER_TOKEN
        text = "".join([f"{block & 0xFFFF_FFFF_FFFF_FFFF:016x}" * (characters // 16) for block in self.blocks])
        return text[: self.prompt_tokens * BYTES_PER_TOKEN]


class _MooncakeLine(BaseModel):
    timestamp: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    input_length: Annotated[int, Field(ge=0, le=MOST_TOKENS)]
    output_length: Annotated[int, Field(ge=0, le=MOST_TOKENS)]
    hash_ids: tuple[int, ...]


def read_trace(path: Path) -> list[TraceRequest]:
    """Read Mooncake's JSON lines or Azure's CSV, in order of time; raises OSError, TraceError."""
    with path.open(encoding="utf-8", newline="") as file:
        try:
            first = file.readline()
            file.seek(0)
            requests = list(_azure(file) if "ContextTokens" in first else _mooncake(file))
        except UnicodeDecodeError as error:
            raise TraceError(f"it is no text: {error}") from error
    if not requests:
        raise TraceError("it has no requests")
    return requests


def _mooncake(lines: Iterable[str]) -> Iterator[TraceRequest]:
    """https://github.com/kvcache-ai/Mooncake: milliseconds, and one hash for each 512 tokens."""
    before = 0.0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            read = _MooncakeLine.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "the line"
            raise TraceError(f"line {number}: {where}: {first['msg']}") from error
        if read.timestamp < before:
            raise TraceError(f"line {number}: the timestamp {read.timestamp:g} is before that of an earlier line; sort the trace by time")
        before = read.timestamp
        prompt, output = max(read.input_length, 1), max(read.output_length, 1)
        missing = -(-prompt // MOONCAKE_BLOCK_TOKENS) - len(read.hash_ids)
        fresh = tuple(range(-number * 2**20, -number * 2**20 + max(missing, 0)))  # no other request has these blocks
        yield TraceRequest(read.timestamp / 1000, prompt, output, (*read.hash_ids, *fresh), MOONCAKE_BLOCK_TOKENS)


def _azure(lines: Iterable[str]) -> Iterator[TraceRequest]:
    """https://github.com/Azure/AzurePublicDataset, LLM inference traces: no prompt shares anything."""
    start: datetime | None = None
    before = 0.0
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            time = datetime.fromisoformat(row["TIMESTAMP"].strip()[:26])
            prompt, output = int(row["ContextTokens"]), int(row["GeneratedTokens"])
        except (KeyError, ValueError, AttributeError, TypeError) as error:
            raise TraceError(f"line {number}: {error}; it takes TIMESTAMP, ContextTokens and GeneratedTokens") from error
        start = start or time
        at = (time - start).total_seconds()
        if at < before or not (0 <= prompt <= MOST_TOKENS and 0 <= output <= MOST_TOKENS):
            raise TraceError(f"line {number}: time goes backwards, or a length is not between 0 and {MOST_TOKENS}")
        before, prompt, output = at, max(prompt, 1), max(output, 1)
        blocks = tuple(range(number * 2**20, number * 2**20 + -(-prompt // MOONCAKE_BLOCK_TOKENS)))
        yield TraceRequest(at, prompt, output, blocks, MOONCAKE_BLOCK_TOKENS)


def spread(requests: Sequence[TraceRequest], seed: int) -> list[TraceRequest]:
    """Spread requests with equal times at random, evenly up to the next time.

    Public traces are rounded, Mooncake's to 3 s, and real requests do not arrive by the dozen at the same instant.
    """
    random = Random(seed)  # noqa: S311 - repeatable by design
    times = sorted({request.at for request in requests})
    until = dict(zip(times, [*times[1:], times[-1] + min(LONGEST_ROUNDING_SECONDS, times[-1])], strict=True))
    moved = []
    for at, group in groupby(requests, lambda request: request.at):
        together = list(group)
        span = min(until[at] - at, LONGEST_ROUNDING_SECONDS) if len(together) > 1 else 0.0
        offsets = sorted(random.random() for _ in together)
        moved += [replace(request, at=at + span * offset) for request, offset in zip(together, offsets, strict=True)]
    return moved


def body_of(request: TraceRequest, model: str) -> bytes:
    """Return the body of the completion request that a client would send."""
    body: dict[str, object] = {"model": request.adapter or model, "prompt": request.text(), "stream": request.stream}
    if request.stream:
        body["stream_options"] = {"include_usage": True}
    return orjson.dumps(body)
