"""What can come of a large body, and what client and operator are told of those that no parser has answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from endpick.requests.model import CODE_OF, Refused


class Outcome(StrEnum):
    """What came of a large body; the label `outcome` of `endpick_large_bodies_total`."""

    PARSED = "parsed"
    REJECTED = "rejected"
    """By the parser, in its own words."""
    FAILED = "failed"
    """The parser raised, which is a fault of its instance."""
    CANCELLED = "cancelled"
    """The stream ended before there was an answer."""
    TOO_SLOW = "too_slow"
    TOO_MUCH_MEMORY = "too_much_memory"
    CRASHED = "crashed"
    UNAVAILABLE = "unavailable"
    """The helper process did not start, or the parser could not be built in it."""
    QUEUE_FULL = "queue_full"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Refusal:
    """What follows from an outcome.

    Attributes:
        answer: For the client.
        advice: For the operator: what happened and what to change.
    """

    answer: Refused
    advice: str


def _refusal(status: int, message: str, reason: str, advice: str) -> Refusal:
    return Refusal(Refused(status, CODE_OF[status], message, reason), advice)


REFUSALS: Mapping[Outcome, Refusal] = {
    Outcome.TOO_SLOW: _refusal(
        413,
        "the request body takes too long to read",
        "rejected-body-too-slow",
        "a body took longer to parse than it may; --large-body-timeout says how long that is",
    ),
    Outcome.TOO_MUCH_MEMORY: _refusal(
        413,
        "the request body takes too much memory to read",
        "rejected-body-too-much-memory",
        "a body took more memory to parse than it may; --large-body-memory says how much that is",
    ),
    Outcome.CRASHED: _refusal(
        503,
        "the process that reads large request bodies ended; try again",
        "rejected-body-helper-ended",
        "the helper process that parses large bodies ended while it parsed one; the next body gets a new one",
    ),
    Outcome.UNAVAILABLE: _refusal(
        503,
        "large request bodies cannot be read at the moment",
        "rejected-no-body-helper",
        "the helper process that parses large bodies cannot do it; a larger --large-body has bodies parsed without it",
    ),
    Outcome.QUEUE_FULL: _refusal(
        503,
        "too many large request bodies wait to be read",
        "rejected-body-queue-full",
        "too many large bodies wait for the helper process; --large-body-queue says how many bytes of them may",
    ),
    Outcome.STOPPING: _refusal(
        503, "endpick is stopping", "rejected-stopping", "a large body was not parsed, because the process is stopping"
    ),
}
