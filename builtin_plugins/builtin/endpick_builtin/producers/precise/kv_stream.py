"""One publisher's messages in their order: what has been seen, what is missing, and what to do about it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from endpick.api import Limit
from endpick_builtin.producers.precise.engine_blocks import Applied, EngineBlocks
from endpick_builtin.producers.precise.kv_events import Batch
from endpick_builtin.producers.precise.limits import MANY_HELD, MUCH_HELD

MAX_HELD = 10_000
"""Messages kept while the ones before them are fetched, unless the operator says otherwise: as many as vLLM keeps for that."""
MAX_HELD_BYTES = 64 * 1024 * 1024
"""Of such messages, of all publishers together."""
_DONE = object()


@dataclass(frozen=True, slots=True)
class Message:
    """One numbered batch, the model its blocks were computed with, and how many bytes it came in."""

    number: int
    batch: Batch
    model: str
    size: int = 0


@dataclass(slots=True)
class Room:
    """For messages that wait, of all publishers."""

    left: int = MAX_HELD_BYTES


class Verdict(Enum):
    """How a message's number stands to the last one's."""

    FIRST = auto()
    NEXT = auto()
    SEEN = auto()
    """It, or a later one, has come before."""
    GAP = auto()
    RESET = auto()
    """The publisher has begun to count again: a lower number of a later time."""


class Phase(Enum):
    """Where the stream stands."""

    LIVE = auto()
    REPLAYING = auto()


class Step(Enum):
    """What is done with a message."""

    APPLY = auto()
    DROP = auto()
    CATCH_UP = auto()
    """Fetch what is missing, and keep the message until then."""
    START_OVER = auto()
    """Forget everything, then as `CATCH_UP`."""
    HOLD = auto()


_STEPS: Mapping[tuple[Phase, Verdict], Step] = {
    (Phase.LIVE, Verdict.FIRST): Step.CATCH_UP,
    (Phase.LIVE, Verdict.NEXT): Step.APPLY,
    (Phase.LIVE, Verdict.SEEN): Step.DROP,
    (Phase.LIVE, Verdict.GAP): Step.CATCH_UP,
    (Phase.LIVE, Verdict.RESET): Step.START_OVER,
    (Phase.REPLAYING, Verdict.FIRST): Step.HOLD,
    (Phase.REPLAYING, Verdict.NEXT): Step.HOLD,
    (Phase.REPLAYING, Verdict.SEEN): Step.DROP,
    (Phase.REPLAYING, Verdict.GAP): Step.HOLD,
    (Phase.REPLAYING, Verdict.RESET): Step.HOLD,
}


class KvStream:
    """The messages of one publisher, applied in order to what its engine holds."""

    def __init__(
        self,
        blocks: EngineBlocks,
        ask: Callable[[int], bool],
        tell: Callable[[Applied], None],
        judged: Callable[[Verdict], None],
        dropped: Callable[[Limit], None],
        room: Room | None = None,
        max_held: int = MAX_HELD,
    ) -> None:
        """For one endpoint. Messages are put in order here at once, and followed by `work`.

        Args:
            blocks: What the engine holds.
            ask: Begins to fetch messages from this number on, if that is possible; `replayed` and `replay_ended` follow if it is.
            tell: Called with what became of each message.
            judged: Called with the verdict on each message.
            dropped: Called for each message that is not kept, with the limit that says so.
            room: For messages that wait; None for room of its own.
            max_held: So many messages may wait.
        """
        self.blocks = blocks
        self._ask, self._tell, self._judged, self._dropped, self._max_held = ask, tell, judged, dropped, max_held
        self._phase = Phase.LIVE
        self._last: tuple[int, float] | None = None
        self._held: deque[Message] = deque()
        self._room = Room() if room is None else room
        self._works: deque[Iterator[None]] = deque()
        """What is to be done, in its order."""
        self._is_closed = False
        self._expected = 0

    @property
    def next_number(self) -> int:
        """The number that continues what has been seen; 0 for the beginning."""
        return 0 if self._last is None else self._last[0] + 1

    @property
    def waiting(self) -> int:
        """Messages that wait for those before them."""
        return len(self._held)

    @property
    def behind(self) -> int:
        """How many messages are still to be followed by `work`."""
        return len(self._works)

    def work(self) -> Iterator[None]:
        """Follow the messages so far in steps of a fraction of a millisecond; any number of callers may do so at once."""
        while self._works:
            if next(self._works[0], _DONE) is _DONE and self._works:
                self._works.popleft()
            yield

    def close(self) -> None:
        """Follow no more: `work` forgets everything."""
        self._is_closed = True
        self._works = deque((self.blocks.leaving(),))
        self._let_go(self._held)
        self._held.clear()

    def begin_replay(self, number: int) -> bool:
        """Fetch what is kept from this number on, and let what comes meanwhile wait; False when that is impossible now."""
        if self._phase is Phase.REPLAYING or not self._ask(number):
            return False
        self._phase, self._expected = Phase.REPLAYING, number
        return True

    def message(self, message: Message) -> None:
        """A message that was published just now."""
        if self._is_closed:
            return
        verdict = self._judge(message)
        self._judged(verdict)
        step = _STEPS[self._phase, verdict]
        if step is Step.DROP:
            return
        if step is Step.START_OVER:
            self._clear()
            self._last = None
        if step in (Step.CATCH_UP, Step.START_OVER) and message.number > self.next_number and self.begin_replay(self.next_number):
            step = Step.HOLD
        if step is not Step.HOLD:
            self._apply(message)
        elif len(self._held) >= self._max_held:
            self._dropped(MANY_HELD)
        elif message.size > self._room.left:
            self._dropped(MUCH_HELD)
        else:
            self._held.append(message)
            self._room.left -= message.size

    def replayed(self, message: Message) -> None:
        """A message that was fetched. Where older ones are no longer kept, blocks may have been removed unseen: all are forgotten."""
        if self._is_closed:
            return
        if message.number > self._expected:
            self._clear()
        if message.number >= self.next_number:
            self._apply(message)
        self._expected = message.number + 1

    def replay_ended(self, complete: bool) -> None:
        """All that is kept has been fetched, or it failed: then what is known may be wrong, and is forgotten."""
        self._phase = Phase.LIVE
        if not complete:
            self._clear()
        held, self._held = self._held, deque()
        self._let_go(held)
        for message in held:
            if self._phase is Phase.REPLAYING:
                self._held.append(message)
                self._room.left -= message.size
            elif not complete:
                self._apply(message)
            else:
                self._again(message)

    def _again(self, message: Message) -> None:
        """A message that had to wait; it has been counted."""
        verdict = self._judge(message)
        if verdict is Verdict.RESET:
            self._clear()
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
        self._last = message.number, message.batch.time
        self._works.append(self._following(message))

    def _following(self, message: Message) -> Iterator[None]:
        applied = Applied()
        yield from self.blocks.steps(message.batch.events, message.model, applied)
        self._tell(applied)

    def _clear(self) -> None:
        self._works.append(self.blocks.clearing())

    def _let_go(self, held: Iterable[Message]) -> None:
        self._room.left += sum(message.size for message in held)
