"""The load of the demo: multi-turn chats of several tenants, each tenant with a system prompt of its own."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from endpick.simulation.tokens import answer_text


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    """Size of a load; sizes in tokens of the simulator's tokenizer."""

    span_seconds: float
    """The last turn is due before this."""
    requests_per_second: float = 20.0
    tenants: int = 16
    turns: int = 5
    system_tokens: int = 1500
    question_tokens: int = 48
    answer_tokens: int = 24

    @property
    def sessions(self) -> int:
        """Chats in all, at least one."""
        return max(1, round(self.span_seconds * self.requests_per_second / self.turns))


@dataclass(frozen=True, slots=True)
class Turn:
    """One question, and when to ask it: not before it is due, nor before the previous one was answered."""

    due_seconds: float
    """Since the start of the load."""
    question: str


@dataclass(frozen=True, slots=True)
class Chat:
    """One conversation."""

    name: str
    system_prompt: str
    turns: tuple[Turn, ...]
    answer_tokens: int


def make_workload(settings: WorkloadSettings, seed: int) -> tuple[Chat, ...]:
    """The chats of a load, in order of their start; the same arguments give the same chats."""
    random = Random(seed)  # noqa: S311 - repeatable by design
    prompts = [answer_text(random.getrandbits(64), settings.system_tokens) for _ in range(settings.tenants)]
    starts = sorted(random.uniform(0, settings.span_seconds / 2) for _ in range(settings.sessions))
    return tuple(
        Chat(f"chat-{number}", random.choice(prompts), _make_turns(settings, start, random), settings.answer_tokens)
        for number, start in enumerate(starts)
    )


def _make_turns(settings: WorkloadSettings, start: float, random: Random) -> tuple[Turn, ...]:
    gap = (settings.span_seconds - start) / settings.turns
    return tuple(
        Turn(start + gap * (number + random.uniform(0, 0.8)), answer_text(random.getrandbits(64), settings.question_tokens))
        for number in range(settings.turns)
    )
