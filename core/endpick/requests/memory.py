"""One account of what a process holds for requests, and the stages of overload that follow from it.

Every part that keeps bytes for longer than a call has a `MemoryBudget` of the account, or adds to it. A part that could take more
looks at `MemoryAccount.stage` first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from endpick.requests.long_body import Body, LongBody
from endpick.requests.model import CODE_OF, Refused, Structure
from endpick.requests.weight import is_ascii, structure_of


class OverloadStage(IntEnum):
    """How close the process is to the memory it may use; each stage does what those before it do, too."""

    NORMAL = 0
    RELEASING = 1
    """Plugins forget what they can learn again."""
    SHEDDING = 2
    """Requests of negative priority are refused."""
    REFUSING = 3
    """New requests are refused."""
    CLOSING = 4
    """New streams are refused before anything of them is read."""


@dataclass(frozen=True, slots=True)
class StageBounds:
    """When a stage begins and ends, as shares of the memory that the process may use.

    Attributes:
        begins: The stage begins when so much is in use.
        ends: It ends when less than this is: below `begins`, so that it does not begin again at once.
        counts_resident: What the operating system says is resident counts as well as what is accounted for. Not in the stages that
            refuse everything: what Python does not give back to the system is free all the same, and no refusal would change it.
        action: What happens, for logs.
    """

    begins: float
    ends: float
    counts_resident: bool
    action: str


STAGE_BOUNDS: dict[OverloadStage, StageBounds] = {
    OverloadStage.NORMAL: StageBounds(0.0, 0.0, True, "everything is served"),
    OverloadStage.RELEASING: StageBounds(0.70, 0.65, True, "plugins forget what they can learn again"),
    OverloadStage.SHEDDING: StageBounds(0.80, 0.75, True, "requests of negative priority are refused"),
    OverloadStage.REFUSING: StageBounds(0.90, 0.85, False, "new requests are refused"),
    OverloadStage.CLOSING: StageBounds(0.95, 0.90, False, "new streams and bodies under way are refused"),
}

OVERLOADED = Refused(503, CODE_OF[503], "endpick holds nearly all the memory that it may use; try again", "rejected-overloaded")
SHED_FOR_MEMORY = Refused(429, CODE_OF[429], "endpick is short of memory, sheddable request dropped", "rejected-overloaded")


def next_stage(stage: OverloadStage, accounted: float, resident: float) -> OverloadStage:
    """The stage that follows: as many up as it takes at once, and down only past the end of each.

    Args:
        stage: The present one.
        accounted: What is accounted for, as a share of what may be used.
        resident: What is resident, as the same share; 0 where the system does not say.
    """

    def used(bounds: StageBounds) -> float:
        return max(accounted, resident) if bounds.counts_resident else accounted

    highest = max(each for each, bounds in STAGE_BOUNDS.items() if used(bounds) >= bounds.begins)
    if highest >= stage:
        return highest
    while stage > highest and used(STAGE_BOUNDS[stage]) < STAGE_BOUNDS[stage].ends:
        stage = OverloadStage(stage - 1)
    return stage


EXCHANGE_BYTES: Final = 2500
"""Of a request under way, beside its stream, its body, and what producers left. Measured for 10,000 that stay, all but stream and body:
3.0 KB with llm-d's default profile, and 7.7 KB with predicted latencies. One whose producers wait takes no less."""
DROP_BYTES: Final = 64 * 1024 * 1024
"""To give back so much takes the system 5 to 10 ms; to give back 400 MB, 57."""


class MemoryAccount:
    """What one process holds for requests, and the stage that follows from it. One thread uses it."""

    __slots__ = (
        "_base_bytes",
        "_limit_bytes",
        "_resident_bytes",
        "alarm_bytes",
        "held_bytes",
        "learnt_bytes",
        "low_bytes",
        "on_drop",
        "on_stage",
        "parsed_bytes",
        "refused",
        "shed",
        "stage",
        "streams_refused",
    )

    def __init__(self, limit_bytes: int = sys.maxsize, base_bytes: int = 0) -> None:
        """An account in the stage NORMAL.

        Args:
            limit_bytes: What the process may use in all.
            base_bytes: What it uses without any request.
        """
        self._limit_bytes = limit_bytes
        self._base_bytes = base_bytes
        self._resident_bytes = 0
        self.held_bytes = 0
        """Everything that is accounted for: what the budgets hold, what was parsed, and what plugins have learnt."""
        self.parsed_bytes = 0
        """What bodies became of requests that are under way, an estimate: see `parsed_size`."""
        self.learnt_bytes = 0
        """What plugins say they have learnt."""
        self.stage = OverloadStage.NORMAL
        """Only to be read."""
        self.on_stage: list[Callable[[OverloadStage, OverloadStage], None]] = []
        """Called with the stage that ended and the one that began."""
        self.low_bytes = -DROP_BYTES
        """A part that gives back calls `settle` when there is less than this."""
        self.on_drop: list[Callable[[], None]] = []
        """Called when much less is held than was: there is memory to give back to the system."""
        self.shed = 0
        self.refused = 0
        self.streams_refused = 0
        self.alarm_bytes = self._next_alarm()
        """A part that adds to `held_bytes` calls `reconsider` when there is more than this."""

    @property
    def limit_bytes(self) -> int:
        """What the process may use in all."""
        return self._limit_bytes

    @property
    def is_unexplained(self) -> bool:
        """Whether memory is short, though what is accounted for does not say why."""
        accounted = self._base_bytes + self.held_bytes
        return self.stage > OverloadStage.NORMAL and accounted < STAGE_BOUNDS[OverloadStage.RELEASING].begins * self._limit_bytes

    @property
    def unaccounted_bytes(self) -> int:
        """What is resident beside what the process uses without requests and what is accounted for; negative where that is less."""
        return self._resident_bytes - self._base_bytes - self.held_bytes

    def hold_parsed(self, size: int) -> None:
        """Account for what a body became, or with a negative size for the end of its request."""
        self.parsed_bytes += size
        self.held_bytes += size
        if self.held_bytes > self.alarm_bytes:
            self.reconsider()

    def measured(self, resident_bytes: int, learnt_bytes: int) -> None:
        """Take note of what is resident and what plugins have learnt; called every now and then."""
        self._resident_bytes = resident_bytes
        self.held_bytes += learnt_bytes - self.learnt_bytes
        self.learnt_bytes = learnt_bytes
        self.reconsider()
        self.settle()

    def reconsider(self) -> None:
        """Go to the stage that follows from what is held now."""
        limit = self._limit_bytes
        before, after = self.stage, next_stage(self.stage, (self._base_bytes + self.held_bytes) / limit, self._resident_bytes / limit)
        if after is not before:
            self.stage = after
            self.alarm_bytes = self._next_alarm()
            for told in self.on_stage:
                told(before, after)

    def settle(self) -> None:
        """Have memory given back if much less is held than was; else take note of what is held."""
        low = self.held_bytes - DROP_BYTES
        if self.held_bytes < self.low_bytes:
            self.low_bytes = low
            for told in self.on_drop:
                told()
        elif low > self.low_bytes:
            self.low_bytes = low

    def counts(self) -> dict[str, int]:
        """What was refused in the stages of overload, by what it was."""
        return {"request_shed": self.shed, "request_refused": self.refused, "stream_refused": self.streams_refused}

    def _next_alarm(self) -> int:
        """More than this calls for the next stage at once, between two measurements."""
        if self.stage is OverloadStage.CLOSING:
            return sys.maxsize
        begins = STAGE_BOUNDS[OverloadStage(self.stage + 1)].begins
        return sys.maxsize if self._limit_bytes == sys.maxsize else int(begins * self._limit_bytes) - self._base_bytes


class MemoryBudget:
    """Bytes of an account that many streams share; a stream that takes some gives them back, also those that were one too many."""

    __slots__ = ("account", "held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int, account: MemoryAccount | None = None) -> None:
        """A budget of its own account, without a limit there, if none is given."""
        self.limit_bytes = limit_bytes
        """Only to be read."""
        self.account = MemoryAccount() if account is None else account
        self.held_bytes = 0

    def hold(self, size: int) -> bool:
        """Account `size` more, or fewer if negative; False if that is more than there is."""
        self.held_bytes += size
        account = self.account
        account.held_bytes += size
        if account.held_bytes > account.alarm_bytes:
            account.reconsider()
        return size <= 0 or self.held_bytes <= self.limit_bytes


_GRPC: Final = b"\0"
"""What a gRPC body begins with."""
_TOKEN_BYTES: Final = 8
"""Of a token id, as a number and in the rendered prompt; in a gRPC body it may take one."""


def unparsed_size(body: Body) -> int:
    """About how many bytes a body takes of which nothing is kept but its prompt, as token ids where the body is a gRPC message."""
    is_grpc = body.starts_with(_GRPC) if isinstance(body, LongBody) else body.startswith(_GRPC)
    return len(body) * (1 + _TOKEN_BYTES) if is_grpc else len(body)


def parsed_size(body: bytes, structure: Structure | None = None) -> int:
    """About how many bytes a JSON body takes once it is parsed, and its prompt rendered.

    Measured for CPython 3.11: text takes a byte for each character, or up to four if any is not ASCII; what follows a comma takes 80, if
    it is a key with its value, an object 200, a list 64. The rendered prompt takes as much as the body. Of eleven bodies of different
    structure none took more than 1.1 times the estimate, nor less than a fifth of it.

    Args:
        body: As the client sent it.
        structure: What `structure_of` says of it, where that is known.
    """
    size = len(body)
    if size > _LONG_BYTES:
        text = size if is_ascii(body) else 4 * size
        counted = structure_of(body) if structure is None else structure
        return size + text + 80 * counted.commas + 200 * counted.objects + 64 * counted.lists
    text = size if body.isascii() else 4 * size
    return size + text + 80 * body.count(b",") + 200 * body.count(b"{") + 64 * body.count(b"[")


_LONG_BYTES: Final = 4096
