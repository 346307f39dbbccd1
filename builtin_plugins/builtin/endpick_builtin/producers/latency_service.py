"""Clients of llm-d's latency predictor and trainer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from endpick.api import ConfigurationError, Unavailable
from endpick_builtin.producers.json_service import JsonService, problem_with_url

PREDICT = "/predict/bulk/strict"
TRAIN = "/add_training_data_bulk"
MAX_ROWS = 10_000  # limit of llm-d's predictor
MAX_WAITING_ROWS = 10 * MAX_ROWS
_MAX_MS = 1e9

Features: TypeAlias = dict[str, str | float | int]  # of one endpoint, in the predictor's protocol


@dataclass(frozen=True, slots=True)
class Prediction:
    """Expected latencies at one endpoint, in seconds."""

    ttft: float
    tpot: float


@dataclass(frozen=True, slots=True)
class LatencySettings:
    """Settings from llm-d's environment variables.

    A question goes to a random URL after `window_seconds`, or at `max_rows` (0: the predictor's limit). A flush sends at most `sample_size`
    random samples.
    """

    training_url: str = "http://localhost:8000"
    prediction_urls: tuple[str, ...] = ("http://localhost:8001",)
    sample_size: int = 1000
    flush_seconds: float = 1.0
    timeout_seconds: float = 10.0
    window_seconds: float = 0.001
    max_rows: int = 0
    max_questions: int = 36

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> LatencySettings:
        """Read the settings; raises ConfigurationError for invalid URLs.

        Invalid numbers become the default, as in llm-d.
        """
        training = environment.get("TRAINING_SERVER_URL") or cls().training_url
        predictions = environment.get("PREDICTION_SERVER_URL") or cls().prediction_urls[0]
        urls = tuple(url.strip() for url in predictions.split(",") if url.strip())
        for variable, url in (("TRAINING_SERVER_URL", training), *(("PREDICTION_SERVER_URL", url) for url in urls)):
            problem = problem_with_url(url)
            if problem is not None:
                raise ConfigurationError(f"the environment variable {variable}: {problem}")

        def number(name: str, default: int, least: int = 1) -> int:
            text = environment.get(name, "")
            found = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
            return found if found >= least else default

        return cls(
            training,
            urls or cls().prediction_urls,
            number("LATENCY_MAX_SAMPLE_SIZE", 1000),
            number("LATENCY_FLUSH_INTERVAL_SEC", 1),
            number("LATENCY_HTTP_TIMEOUT_SEC", 10),
            number("LATENCY_COALESCE_WINDOW_MS", 1, least=0) / 1000,
            number("LATENCY_MAX_COALESCED_ROWS", 0, least=0),
            number("LATENCY_MAX_CONCURRENT_DISPATCHES", 36),
        )


def predictions_in(answer: object, count: int) -> list[Prediction]:
    """Parse one prediction per row; raises Unavailable for any other answer."""
    rows = answer.get("predictions") if isinstance(answer, dict) else None
    if not isinstance(rows, list) or len(rows) != count:
        raise Unavailable(f"the predictor's answer does not hold {count} predictions")
    return [Prediction(_seconds(row, "ttft_ms"), _seconds(row, "tpot_ms")) for row in rows]


def _seconds(row: object, name: str) -> float:
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, int | float) or not 0 <= value <= _MAX_MS:
        raise Unavailable(f"the predictor's answer holds a {name} that is no latency: {value!r:.40}")
    return value / 1000


class Predictor:
    """Client of the predictor, which sends the rows of one window together."""

    def __init__(self, settings: LatencySettings, random: Random) -> None:
        self._settings = settings
        self._random = random
        self._services = tuple(JsonService(url) for url in settings.prediction_urls)
        self._collected: list[tuple[Sequence[Features], asyncio.Future[list[Prediction]]]] = []
        self._window: asyncio.TimerHandle | None = None
        self._asking: set[asyncio.Task[None]] = set()
        self._waiting_rows = 0
        self._free = asyncio.Semaphore(settings.max_questions)

    @property
    def is_open(self) -> bool:
        return self._services[0].is_open

    def open(self) -> None:
        for service in self._services:
            service.open()

    async def close(self) -> None:
        if self._window is not None:
            self._window.cancel()
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        for service in self._services:
            await service.close()

    async def predict(self, rows: Sequence[Features]) -> list[Prediction]:
        """Return a prediction per row; raises Unavailable without an answer, or if too many rows wait."""
        if self._waiting_rows and self._waiting_rows + len(rows) > MAX_WAITING_ROWS:
            raise Unavailable(f"{self._waiting_rows} rows wait for the predictor's answer")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Prediction]] = loop.create_future()
        if self._collected and self._rows() + len(rows) > MAX_ROWS:
            self._dispatch()
        self._collected.append((rows, future))
        self._waiting_rows += len(rows)
        if self._window is None:
            self._window = loop.call_later(self._settings.window_seconds, self._dispatch)
        if 0 < self._settings.max_rows <= self._rows():
            self._dispatch()
        return await future

    def _rows(self) -> int:
        return sum(len(rows) for rows, _ in self._collected)

    def _dispatch(self) -> None:
        collected, self._collected = self._collected, []
        if self._window is not None:
            self._window.cancel()
            self._window = None
        if collected:
            task = asyncio.create_task(self._ask(collected))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _ask(self, collected: Sequence[tuple[Sequence[Features], asyncio.Future[list[Prediction]]]]) -> None:
        rows = [row for asked, _ in collected for row in asked]
        problem: Unavailable | None = None
        predictions: list[Prediction] = []
        try:
            async with self._free:
                answer = await self._random.choice(self._services).post(PREDICT, {"requests": rows}, self._settings.timeout_seconds)
            predictions = predictions_in(answer, len(rows))
        except Unavailable as unavailable:
            problem = unavailable
        finally:
            self._waiting_rows -= len(rows)
        start = 0
        for asked, future in collected:
            if not future.done():  # its request was cancelled
                if problem is not None:
                    future.set_exception(problem)
                else:
                    future.set_result(predictions[start : start + len(asked)])
            start += len(asked)


class Trainer:
    """Client of the trainer, which keeps samples until they are flushed."""

    def __init__(self, settings: LatencySettings, random: Random) -> None:
        self._settings = settings
        self._random = random
        self._service = JsonService(settings.training_url)
        self._samples: list[Features] = []
        self._seen = 0

    def open(self) -> None:
        self._service.open()

    async def close(self) -> None:
        await self._service.close()

    def add(self, sample: Features) -> None:
        """Keep a sample; beyond `sample_size`, a random subset is kept."""
        self._seen += 1
        if len(self._samples) < self._settings.sample_size:
            self._samples.append(sample)
            return
        position = self._random.randrange(self._seen)
        if position < len(self._samples):
            self._samples[position] = sample

    async def flush(self) -> int:
        """Send all samples, and return their number; if they are not accepted, raises Unavailable and loses them."""
        samples, self._samples, self._seen = self._samples, [], 0
        if samples:
            await self._service.post(TRAIN, {"entries": samples}, self._settings.timeout_seconds)
        return len(samples)
