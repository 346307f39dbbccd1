"""The demo's load: chats of several tenants, with measurements."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import aiohttp
import orjson

from endpick_lab.openai import answer_text


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    """Rate and size of a load; lengths are in tokens."""

    span_seconds: float  # the last request is due before this
    requests_per_second: float = 20.0
    tenants: int = 16
    turns: int = 5
    system_tokens: int = 1500
    question_tokens: int = 48
    answer_tokens: int = 24

    @property
    def sessions(self) -> int:
        """The number of conversations, at least one."""
        return max(1, round(self.span_seconds * self.requests_per_second / self.turns))


@dataclass(frozen=True, slots=True)
class Turn:
    """One question; sent when it is due and the previous one is answered."""

    due_seconds: float  # since the start of the load
    question: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation, whose turns follow each other."""

    name: str
    system_prompt: str
    turns: tuple[Turn, ...]
    answer_tokens: int


def make_workload(settings: WorkloadSettings, seed: int) -> tuple[Chat, ...]:
    """Return the chats of a load in order of their start; the same for the same seed."""
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


@dataclass(frozen=True, slots=True)
class ChatOutcome:
    """The result and the timing of one request."""

    chat: str  # name; empty for a question cut off by the end
    served_by: str | None  # `x-served-by`
    ttft_seconds: float | None  # time to first token
    total_seconds: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    error: str | None = None  # None for a complete answer


async def run_load(url: str, workload: Sequence[Chat], model: str, limit_seconds: float) -> list[ChatOutcome]:
    """Run all chats concurrently; returns outcomes in order of completion. Unanswered requests have an error."""
    outcomes: list[ChatOutcome] = []
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(url, timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as client:
        start = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(limit_seconds), asyncio.TaskGroup() as tasks:
                for chat in workload:
                    tasks.create_task(_hold_chat(client, chat, model, start, outcomes))
        except TimeoutError:
            unanswered = sum(len(chat.turns) for chat in workload) - len(outcomes)
            error = f"not answered when the load ended after {limit_seconds:.0f} s"
            outcomes += [ChatOutcome("", None, None, limit_seconds, error=error)] * unanswered
    return outcomes


async def _hold_chat(client: aiohttp.ClientSession, chat: Chat, model: str, start: float, outcomes: list[ChatOutcome]) -> None:
    messages = [{"role": "system", "content": chat.system_prompt}]
    for turn in chat.turns:
        await asyncio.sleep(max(0.0, start + turn.due_seconds - asyncio.get_running_loop().time()))
        messages.append({"role": "user", "content": turn.question})
        outcome, answer = await _ask(client, chat, model, messages)
        outcomes.append(outcome)
        messages.append({"role": "assistant", "content": answer})


async def _ask(client: aiohttp.ClientSession, chat: Chat, model: str, messages: list[dict[str, str]]) -> tuple[ChatOutcome, str]:
    clock = asyncio.get_running_loop().time
    body = {
        "model": model,
        "messages": messages,
        "max_tokens": chat.answer_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = _Answer()
    served_by: str | None = None
    error: str | None = None
    sent = clock()
    try:
        async with client.post("/v1/chat/completions", data=orjson.dumps(body), headers={"content-type": "application/json"}) as response:
            served_by = response.headers.get("x-served-by")
            if response.status == 200:
                async for line in response.content:
                    _take_line(answer, line, clock())
                error = None if answer.done else "the answer ended before [DONE]"
            else:
                error = f"{response.status} {(await response.text())[:200].strip()}"
    except (aiohttp.ClientError, orjson.JSONDecodeError) as problem:
        error = f"{type(problem).__name__}: {problem}"
    ttft = None if answer.first_token_time is None else answer.first_token_time - sent
    outcome = ChatOutcome(chat.name, served_by, ttft, clock() - sent, answer.prompt_tokens, answer.cached_tokens, error)
    return outcome, answer.text


@dataclass(slots=True)
class _Answer:
    text: str = ""
    first_token_time: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    done: bool = False


_DATA = b"data: "
_DONE = b"data: [DONE]"


def _take_line(answer: _Answer, line: bytes, now: float) -> None:
    if line.startswith(_DONE):
        answer.done = True
        return
    if not line.startswith(_DATA):
        return
    event = orjson.loads(line[len(_DATA) :])
    for choice in event["choices"]:
        content = choice["delta"].get("content")
        if content:
            answer.text += content
            answer.first_token_time = answer.first_token_time or now
    usage = event.get("usage")
    if usage:
        answer.prompt_tokens = usage["prompt_tokens"]
        answer.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
