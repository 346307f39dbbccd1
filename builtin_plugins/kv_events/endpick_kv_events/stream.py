"""Orders one publisher's messages, and replays gaps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from endpick_kv_events.engine_blocks import Applied, EngineBlocks
from endpick_kv_events.messages import Batch

MAX_HELD = 10_000  # during a replay: as many as vLLM keeps


@dataclass(frozen=True, slots=True)
class Message:
    """One numbered batch, and the base model of its blocks."""

    number: int
    batch: Batch
    model: str


class Verdict(Enum):
    """How a message's sequence number relates to the last one."""

    FIRST = auto()
    NEXT = auto()
    SEEN = auto()
    GAP = auto()
    RESET = auto()  # a lower number with a later timestamp: the publisher restarted


class Phase(Enum):
    """State of a stream."""

    LIVE = auto()
    REPLAYING = auto()


class Action(Enum):
    """Reaction to a message."""

    APPLY = auto()
    DROP = auto()
    CATCH_UP = auto()  # hold the message until the gap is replayed
    START_OVER = auto()  # forget all blocks, then as `CATCH_UP`
    HOLD = auto()


_ACTIONS: Mapping[tuple[Phase, Verdict], Action] = {
    (Phase.LIVE, Verdict.FIRST): Action.CATCH_UP,
    (Phase.LIVE, Verdict.NEXT): Action.APPLY,
    (Phase.LIVE, Verdict.SEEN): Action.DROP,
    (Phase.LIVE, Verdict.GAP): Action.CATCH_UP,
    (Phase.LIVE, Verdict.RESET): Action.START_OVER,
    (Phase.REPLAYING, Verdict.FIRST): Action.HOLD,
    (Phase.REPLAYING, Verdict.NEXT): Action.HOLD,
    (Phase.REPLAYING, Verdict.SEEN): Action.DROP,
    (Phase.REPLAYING, Verdict.GAP): Action.HOLD,
    (Phase.REPLAYING, Verdict.RESET): Action.HOLD,
}


class KvStream:
    """Applies one publisher's messages, in order, to the blocks of its engine."""

    def __init__(
        self,
        blocks: EngineBlocks,
        start_replay: Callable[[int], bool],
        on_applied: Callable[[Applied], None],
        on_verdict: Callable[[Verdict], None],
    ) -> None:
        """`start_replay` fetches from a number on, or returns False; `replayed` and `replay_ended` follow."""
        self.blocks = blocks
        self._start_replay, self._on_applied, self._on_verdict = start_replay, on_applied, on_verdict
        self._phase = Phase.LIVE
        self._last: tuple[int, float] | None = None
        self._held: deque[Message] = deque(maxlen=MAX_HELD)
        self._expected = 0

    @property
    def next_number(self) -> int:
        return 0 if self._last is None else self._last[0] + 1

    @property
    def held(self) -> int:
        return len(self._held)

    def begin_replay(self, number: int) -> bool:
        """False if impossible now."""
        if self._phase is Phase.REPLAYING or not self._start_replay(number):
            return False
        self._phase, self._expected = Phase.REPLAYING, number
        return True

    def published(self, message: Message) -> None:
        verdict = self._judge(message)
        self._on_verdict(verdict)
        action = _ACTIONS[self._phase, verdict]
        if action is Action.START_OVER:
            self.blocks.clear()
            self._last = None
        if action in (Action.CATCH_UP, Action.START_OVER):
            is_behind = message.number > self.next_number
            action = Action.HOLD if is_behind and self.begin_replay(self.next_number) else Action.APPLY
        if action is Action.HOLD:
            self._held.append(message)
        elif action is Action.APPLY:
            self._apply(message)

    def replayed(self, message: Message) -> None:
        """After a gap, blocks may have been evicted unseen."""
        if message.number > self._expected:
            self.blocks.clear()
        if message.number >= self.next_number:
            self._apply(message)
        self._expected = message.number + 1

    def replay_ended(self, complete: bool) -> None:
        """Apply the held messages; after a failed replay forget all blocks first."""
        self._phase = Phase.LIVE
        if not complete:
            self.blocks.clear()
        while self._held:
            message = self._held.popleft()
            verdict = self._judge(message) if complete else Verdict.NEXT
            if verdict is Verdict.RESET:
                self.blocks.clear()
            if verdict is not Verdict.SEEN:
                self._apply(message)

    def _judge(self, message: Message) -> Verdict:
        if self._last is None:
            return Verdict.FIRST
        number, time = self._last
        if message.number <= number:
            return Verdict.RESET if message.batch.time > time else Verdict.SEEN
        return Verdict.NEXT if message.number == number + 1 else Verdict.GAP

    def _apply(self, message: Message) -> None:
        time = message.batch.time
        self._last = message.number, time if self._last is None else max(time, self._last[1])
        self._on_applied(self.blocks.apply(message.batch.events, message.model))
