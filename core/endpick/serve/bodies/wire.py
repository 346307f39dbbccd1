"""What `endpick serve` and its helper process say to each other: frames, each a head and pieces of bytes.

The helper reads pickles, which its parent writes. It parses what clients send, so its own word is less worth: a head in JSON, judged by a
model, and pieces that stay bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from endpick.data.model_rules import RewriteTable
from endpick.host.discovery import Candidate

FRAME = Struct("!IQ")
"""Bytes of the head, and of all pieces together."""
MOST_HEAD_BYTES = 1 << 20
LONGEST_TEXT = 2000
"""Characters of a problem or of a line for the log."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A parser as the helper is to build it.

    Attributes:
        name: Of the instance.
        candidate: What is to be imported.
        parameters: The block as the document has it.
        lock_file: What the operator pinned; None when plugins are not locked.
    """

    name: str
    candidate: Candidate
    parameters: Mapping[str, object]
    lock_file: str | None


@dataclass(frozen=True, slots=True)
class BuildJob:
    """Build a parser; it gets the next number, the first one 0."""

    spec: Spec


@dataclass(frozen=True, slots=True)
class ParseJob:
    """Parse the body that follows with the parser of this number."""

    parser: int
    path: str
    headers: Mapping[str, str]
    rewrite: str | None
    rewrites: RewriteTable
    draw: float
    memory_bytes: int


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LogLine(_Closed):
    """Something that the parser logged."""

    level: int = Field(ge=0, le=1000)
    text: str = Field(max_length=LONGEST_TEXT)


class GrownSample(_Closed):
    """How much a sample of the parser's metrics has grown; the fields of its `SampleKey` first."""

    family: str
    type: str
    documentation: str
    sample: str
    labels: tuple[tuple[str, str], ...]
    more: float


class Head(_Closed):
    """The helper's answer. What follows depends on `kind`.

    `built` and `unbuilt` have no pieces. `parsed` has model, cache salt, each text of the prompt, with `media` layout and content of the
    prompts (see `layout`), and the rewritten body if there is one; `rejected` has message and reason.
    """

    kind: Literal["built", "unbuilt", "parsed", "rejected", "failed", "exhausted"]
    pieces: tuple[int, ...] = ()
    """Bytes of each."""
    seconds: float = 0.0
    problem: str = Field("", max_length=LONGEST_TEXT)
    """Why the parser was not built, or failed."""
    method: Literal["parse", "rewrite_model"] = "parse"
    """Which failed."""
    status: int = 0
    """Of a rejection."""
    streaming: bool = False
    max_output_tokens: int | None = None
    needs_model: bool = True
    skip_response: bool = False
    media: bool = False
    """Whether the prompts hold media, so that their pieces follow the texts."""
    rewritten: bool = False
    """Whether the last piece is a body."""
    retires: bool = False
    """Whether the helper has grown so much that another one should go on."""
    logs: tuple[LogLine, ...] = ()
    grown: tuple[GrownSample, ...] = ()


def shortened(text: str) -> str:
    """Text that fits a head: of limited length, and of characters that JSON can carry."""
    return text[:LONGEST_TEXT].encode("utf-8", "replace").decode()
