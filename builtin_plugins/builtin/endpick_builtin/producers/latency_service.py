"""What is said to the servers that learn and predict latencies: rows of features, predictions, and samples of what became of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from endpick.api import ConfigurationError, Limit, Limits, Unavailable
from endpick_builtin.collection.page_limits import SERVICE_SIZE, PageSize
from endpick_builtin.producers.json_service import JsonService, problem_with_url

PREDICT = "/predict/bulk/strict"
TRAIN = "/add_training_data_bulk"
Features: TypeAlias = dict[str, str | float | int]
"""One endpoint as the predictor sees it, under the names of its protocol."""
_MOST_MS = 1e9
MOST_ROWS = 10_000
"""llm-d's predictor refuses questions with more."""
_MANY_ROWS = Limit(
    "maxRows",
    "a window of questions to the predictor ended early: with those of one more request it would have had more rows than maxRows allows; "
    "lower LATENCY_COALESCE_WINDOW_MS, or raise maxRows if the predictor takes more",
)
MOST_WAITING_ROWS = 10
"""For each of `maxRows`: a row takes a kilobyte, there is one for each endpoint and request, and a predictor may be silent for as long as
it is waited for."""
_MANY_WAITING = Limit(
    "MOST_WAITING_ROWS",
    f"a request goes on without predictions: {MOST_WAITING_ROWS} rows for each of maxRows (MOST_WAITING_ROWS) wait for the "
    "predictor's answer; see what keeps the predictor, or raise maxRows",
)
_MANY_QUESTIONS = Limit(
    "LATENCY_MAX_CONCURRENT_DISPATCHES",
    "a question to the predictor waits: as many are being asked as LATENCY_MAX_CONCURRENT_DISPATCHES allows; raise it, or add predictors",
)
_LATE = Limit(
    "LATENCY_HTTP_TIMEOUT_SEC",
    "a predictor or trainer was given up: no answer within LATENCY_HTTP_TIMEOUT_SEC; raise it, or see what keeps it",
)
_MANY_SAMPLES = Limit(
    "LATENCY_MAX_SAMPLE_SIZE",
    "samples were left out: more requests ended between two flushes than LATENCY_MAX_SAMPLE_SIZE; raise it, or flush more often",
)
LATENCY_LIMITS = (_MANY_ROWS, _MANY_WAITING, _MANY_QUESTIONS, _LATE, _MANY_SAMPLES)
"""Those of `Predictor` and `Trainer`, beside `PAGE_LIMITS`."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is expected of one endpoint, in seconds."""

    ttft: float
    tpot: float


@dataclass(frozen=True, slots=True)
class LatencySettings:
    """What the environment says.

    Attributes:
        training_url: The server that learns.
        prediction_urls: The servers that predict; each question goes to one of them, drawn at random.
        sample_size: Samples sent in one flush; of more, as many are drawn at random.
        flush_seconds: Between two flushes.
        timeout_seconds: For an answer.
        window_seconds: How long questions are gathered, to be asked together.
        most_rows: Rows that end the window at once; 0: as many as the predictor takes.
        most_questions: Asked at the same time.
    """

    training_url: str = "http://localhost:8000"
    prediction_urls: tuple[str, ...] = ("http://localhost:8001",)
    sample_size: int = 1000
    flush_seconds: float = 1.0
    timeout_seconds: float = 10.0
    window_seconds: float = 0.001
    most_rows: int = 0
    most_questions: int = 36

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> LatencySettings:
        """The settings under llm-d's names; a number that is none leaves the default, as in llm-d.

        Raises:
            ConfigurationError: a URL is none.
        """
        training = environment.get("TRAINING_SERVER_URL") or cls().training_url
        predictions = environment.get("PREDICTION_SERVER_URL") or cls().prediction_urls[0]
        urls = tuple(url.strip() for url in predictions.split(",") if url.strip())
        for variable, url in (("TRAINING_SERVER_URL", training), *(("PREDICTION_SERVER_URL", url) for url in urls)):
            problem = problem_with_url(url)
            if problem is not None:
                raise ConfigurationError(f"the environment variable {variable}: {problem}")

        def number(name: str, default: float, least: int = 1) -> int:
            text = environment.get(name, "")
            found = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
            return found if found >= least else int(default)

        return cls(
            training,
            urls or cls().prediction_urls,
            number("LATENCY_MAX_SAMPLE_SIZE", 1000),
            float(number("LATENCY_FLUSH_INTERVAL_SEC", 1)),
            float(number("LATENCY_HTTP_TIMEOUT_SEC", 10)),
            number("LATENCY_COALESCE_WINDOW_MS", 1, least=0) / 1000,
            number("LATENCY_MAX_COALESCED_ROWS", 0, least=0),
            number("LATENCY_MAX_CONCURRENT_DISPATCHES", 36),
        )


def predictions_in(answer: object, count: int) -> list[Prediction]:
    """One for each row that was asked about.

    Raises:
        Unavailable: the answer is not `{"predictions": [{"ttft_ms": …, "tpot_ms": …}, …]}` with finite numbers that are not negative.
    """
    rows = answer.get("predictions") if isinstance(answer, dict) else None
    if not isinstance(rows, list) or len(rows) != count:
        raise Unavailable(f"the predictor's answer does not hold {count} predictions")
    return [Prediction(_seconds(row, "ttft_ms"), _seconds(row, "tpot_ms")) for row in rows]


def _seconds(row: object, name: str) -> float:
    value = row.get(name) if isinstance(row, dict) else None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _MOST_MS:
        raise Unavailable(f"the predictor's answer holds a {name} that is no latency: {_shown(value)}")
    return value / 1000


def _shown(value: object) -> str:
    """Of a list of half a million numbers no text is made."""
    return str(value)[:40] if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"


class Predictor:
    """Asks the predictors; questions that come within one window are asked as one."""

    def __init__(self, settings: LatencySettings, random: Random, limits: Limits, max_rows: int, longest: PageSize = SERVICE_SIZE) -> None:
        """`max_rows`: that are asked about in one question, unless one request has more; `longest`: of answers."""
        self._settings = settings
        self._random = random
        self._limits = limits
        self._max_rows = max_rows
        self._max_waiting = MOST_WAITING_ROWS * max_rows
        self._services = tuple(JsonService(url, limits, longest) for url in settings.prediction_urls)
        self._gathered: list[tuple[Sequence[Features], asyncio.Future[list[Prediction]]]] = []
        self._window: asyncio.TimerHandle | None = None
        self._asking: set[asyncio.Task[None]] = set()
        self._waiting_rows = 0
        self._free = asyncio.Semaphore(settings.most_questions)

    @property
    def is_open(self) -> bool:
        """Whether it can be asked."""
        return self._services[0].is_open

    def open(self) -> None:
        """Begin; within the event loop."""
        for service in self._services:
            service.open()

    async def close(self) -> None:
        """Give up what is being asked, and close all connections."""
        if self._window is not None:
            self._window.cancel()
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)
        for service in self._services:
            await service.close()

    async def predict(self, rows: Sequence[Features]) -> list[Prediction]:
        """One prediction for each row.

        Raises:
            Unavailable: there are none; the message says why.
        """
        if self._waiting_rows and self._waiting_rows + len(rows) > self._max_waiting:
            self._limits.acted(_MANY_WAITING)
            raise Unavailable(f"{self._waiting_rows} rows wait for the predictor's answer")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Prediction]] = loop.create_future()
        if self._gathered and self._rows() + len(rows) > self._max_rows:
            self._limits.acted(_MANY_ROWS)
            self._dispatch()
        self._gathered.append((rows, future))
        self._waiting_rows += len(rows)
        if self._window is None:
            self._window = loop.call_later(self._settings.window_seconds, self._dispatch)
        if 0 < self._settings.most_rows <= self._rows():
            self._dispatch()
        return await future

    def _rows(self) -> int:
        return sum(len(each) for each, _ in self._gathered)

    def _dispatch(self) -> None:
        gathered, self._gathered = self._gathered, []
        if self._window is not None:
            self._window.cancel()
            self._window = None
        if gathered:
            task = asyncio.create_task(self._ask(gathered))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _ask(self, gathered: Sequence[tuple[Sequence[Features], asyncio.Future[list[Prediction]]]]) -> None:
        rows = [row for asked, _ in gathered for row in asked]
        service = self._random.choice(self._services)
        if self._free.locked():
            self._limits.acted(_MANY_QUESTIONS, about=service.url)
        problem: BaseException | None = None
        predictions: list[Prediction] = []
        try:
            async with self._free, asyncio.timeout(self._settings.timeout_seconds):
                predictions = predictions_in(await service.ask(PREDICT, {"requests": rows}), len(rows))
        except TimeoutError:
            self._limits.acted(_LATE, about=service.url)
            problem = Unavailable(f"POST {service.url}{PREDICT}: no answer within {self._settings.timeout_seconds:g} s")
        except Unavailable as unavailable:
            problem = unavailable
        finally:
            self._waiting_rows -= len(rows)
        start = 0
        for asked, future in gathered:
            if future.done():
                pass  # its request was given up
            elif problem is not None:
                future.set_exception(problem)
            else:
                future.set_result(predictions[start : start + len(asked)])
            start += len(asked)


class Trainer:
    """Gathers samples, and sends them to the server that learns."""

    def __init__(self, settings: LatencySettings, random: Random, limits: Limits, longest: PageSize = SERVICE_SIZE) -> None:
        self._settings = settings
        self._random = random
        self._limits = limits
        self._service = JsonService(settings.training_url, limits, longest)
        self._samples: list[Features] = []
        self._seen = 0

    def open(self) -> None:
        """Begin; within the event loop."""
        self._service.open()

    async def close(self) -> None:
        """Close all connections."""
        await self._service.close()

    def add(self, sample: Features) -> None:
        """Keep it for the next flush; of more than fit, each is as likely to be kept as any other."""
        self._seen += 1
        if len(self._samples) < self._settings.sample_size:
            self._samples.append(sample)
            return
        self._limits.acted(_MANY_SAMPLES)
        position = self._random.randrange(self._seen)
        if position < len(self._samples):
            self._samples[position] = sample

    async def flush(self) -> int:
        """Send what there is; how many samples that were.

        Raises:
            Unavailable: the server does not take them; they are lost, for newer ones teach more.
        """
        samples, self._samples, self._seen = self._samples, [], 0
        if not samples:
            return 0
        try:
            async with asyncio.timeout(self._settings.timeout_seconds):
                await self._service.ask(TRAIN, {"entries": samples})
        except TimeoutError as problem:
            self._limits.acted(_LATE, about=self._service.url)
            raise Unavailable(f"POST {self._service.url}{TRAIN}: no answer within {self._settings.timeout_seconds:g} s") from problem
        return len(samples)
