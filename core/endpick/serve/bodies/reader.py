"""Parses large bodies in a helper process, one after the other: who is next, how long it may take, and what comes of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from endpick.api.request import ParsedRequest, Prompt, Rejection
from endpick.host.instance import Instance
from endpick.host.throttle import Throttle
from endpick.requests.large import BodyRead, ElsewhereError, LargeBody, ParserFailed
from endpick.requests.model import Refused
from endpick.serve.bodies.layout import read_all
from endpick.serve.bodies.outcomes import REFUSALS, Outcome
from endpick.serve.bodies.queue import Answer, FairQueue, Waiting
from endpick.serve.metrics import EndpickMetrics

if TYPE_CHECKING:
    from endpick.serve.bodies.helper import Helper, Told
    from endpick.serve.bodies.wire import Head, Spec

_log = logging.getLogger("endpick.bodies")

_LOG_SECONDS = 30.0
_CANCELLED_SECONDS = 1.0
"""How much longer a body may be parsed whose client has gone: a new helper takes about as long to start."""


@dataclass(frozen=True, slots=True)
class LargeBodySettings:
    """What an operator may choose about large bodies.

    Attributes:
        threshold_bytes: A body of more bytes is parsed in the helper process.
        threshold_weight: So is one of more structure: see `endpick.requests.weight.is_heavy`.
        timeout_seconds: How long one may take, from the first byte that the helper gets.
        memory_bytes: How much memory parsing one may take, beside the body itself.
        queue_bytes: How many bytes of them may wait.
        quiet_seconds: A helper without work for so long ends.
        lock_file: What the operator pinned; None when plugins are not locked.
    """

    threshold_bytes: int = 1024 * 1024
    threshold_weight: int = 32 * 1024
    timeout_seconds: float = 10.0
    memory_bytes: int = 1024 * 1024 * 1024
    queue_bytes: int = 256 * 1024 * 1024
    quiet_seconds: float = 60.0
    lock_file: Path | None = None


class LargeBodies:
    """The `LargeBodyReader` of a serving process. It has a helper only while there is something to parse, and a minute longer."""

    def __init__(self, settings: LargeBodySettings, metrics: EndpickMetrics, clock: Callable[[], float]) -> None:
        """Nothing is started yet; `clock` gives monotonic seconds."""
        self._settings = settings
        self._metrics = metrics
        self._throttle = Throttle(clock, _LOG_SECONDS)
        self._queue = FairQueue(settings.queue_bytes)
        self._arrived = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._helper: Helper | None = None
        self._stopping = False
        metrics.large_bodies_waiting.set_function(lambda: self._queue.bodies)
        metrics.large_body_bytes_waiting.set_function(lambda: self._queue.bytes)
        metrics.body_helpers.set_function(lambda: self._helper is not None)

    @property
    def threshold_bytes(self) -> int:
        """See `LargeBodyReader.threshold_bytes`."""
        return self._settings.threshold_bytes

    @property
    def threshold_weight(self) -> int:
        """See `LargeBodyReader.threshold_weight`."""
        return self._settings.threshold_weight

    async def read(self, large: LargeBody) -> Answer:
        """See `LargeBodyReader.read`."""
        waiting = Waiting(large, asyncio.get_running_loop().create_future())
        if self._stopping:
            return self._refused(Outcome.STOPPING, large)
        if not self._queue.push(waiting):
            return self._refused(Outcome.QUEUE_FULL, large)
        self._arrived.set()
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._work())
        try:
            return await waiting.answer
        except asyncio.CancelledError:
            self._abandon(waiting)
            raise

    async def stop(self) -> None:
        """Refuse what waits, and end the helper."""
        self._stopping = True
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        while (waiting := self._queue.pop()) is not None:
            self._refuse(waiting, Outcome.STOPPING)

    def _abandon(self, waiting: Waiting) -> None:
        if not waiting.answer.cancelled():
            return
        self._metrics.large_bodies.labels(Outcome.CANCELLED).inc()
        self._queue.remove(waiting)
        limit = waiting.limit
        if limit is not None and not limit.expired():
            soon = asyncio.get_running_loop().time() + _CANCELLED_SECONDS
            limit.reschedule(min(soon, limit.when() or soon))

    async def _work(self) -> None:
        """Parse what waits until nothing has come for a while."""
        try:
            while await self._something_waits():
                waiting = self._queue.pop()
                if waiting is None:
                    await self._end_helper()
                else:
                    await self._parse(waiting)
        finally:
            await self._end_helper(at_once=True)

    async def _something_waits(self) -> bool:
        """Whether there is something to do: a body, or after a quiet time a helper to end."""
        if self._queue.bodies:
            return True
        if self._helper is None:
            return False
        self._arrived.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.quiet_seconds):
                await self._arrived.wait()
        return True

    async def _parse(self, waiting: Waiting) -> None:
        """Have one body parsed, whatever comes of it; the helper is killed where it cannot be asked again."""
        from endpick.serve.bodies.helper import ParserNotBuiltError  # noqa: PLC0415 - most pickers never meet a large body

        large = waiting.large
        try:
            told = await self._asked(waiting)
        except asyncio.CancelledError:
            self._refuse(waiting, Outcome.STOPPING)
            raise
        except ParserNotBuiltError as problem:
            self._refuse(waiting, Outcome.UNAVAILABLE, str(problem))
        except Exception as problem:
            unparsed = Outcome.TOO_SLOW if isinstance(problem, TimeoutError) else Outcome.CRASHED
            self._refuse(waiting, Outcome.UNAVAILABLE if waiting.limit is None else unparsed, str(problem))
            await self._end_helper(at_once=True)
        else:
            self._note(told.head, large.instance)
            self._answer(waiting, told)
            if told.head.retires:
                await self._end_helper()
        finally:
            waiting.limit = None

    async def _asked(self, waiting: Waiting) -> Told:
        """What the helper says.

        Raises:
            HelperEndedError, ParserNotBuiltError, TimeoutError, OSError: it says nothing.
        """
        from endpick.serve.bodies.helper import Helper  # noqa: PLC0415
        from endpick.serve.bodies.wire import ParseJob  # noqa: PLC0415

        large, settings = waiting.large, self._settings
        if self._helper is not None and self._helper.has_ended:  # killed while it had nothing to do, which is not this body's fault
            await self._end_helper(at_once=True)
        if self._helper is None:
            self._metrics.body_helper_starts.inc()
            self._helper = await Helper.start()
            _log.info("a process that parses large bodies was started", extra={"pid": self._helper.pid})
        number, said = await self._helper.build(spec_of(large.instance, settings.lock_file))
        if said is not None:
            self._note(said, large.instance)
        rewrites = dict(large.rewrites)  # what the table is kept in cannot be pickled
        job = ParseJob(number, large.path, dict(large.headers), large.rewrite, rewrites, large.draw, settings.memory_bytes)
        async with asyncio.timeout(0 if waiting.answer.done() else settings.timeout_seconds) as waiting.limit:
            return await self._helper.parse(job, large.body)

    async def _end_helper(self, *, at_once: bool = False) -> None:
        helper, self._helper = self._helper, None
        if helper is not None:
            await (helper.kill() if at_once else helper.end())

    def _answer(self, waiting: Waiting, told: Told) -> None:
        self._metrics.large_body_seconds.observe(told.head.seconds)
        if told.head.kind == "exhausted":
            self._refuse(waiting, Outcome.TOO_MUCH_MEMORY)
        elif not waiting.answer.done():
            answer = _answer_of(told)
            self._metrics.large_bodies.labels(_OUTCOME_OF[type(answer)]).inc()
            waiting.answer.set_result(answer)

    def _note(self, head: Head, instance: Instance) -> None:
        """Show and log under the instance's name what its double counted and logged."""
        logger = logging.getLogger(f"endpick.plugin.{instance.name}")
        for line in head.logs:
            logger.log(line.level, "%s", line.text)

    def _refuse(self, waiting: Waiting, outcome: Outcome, why: str = "") -> None:
        if not waiting.answer.done():
            waiting.answer.set_result(self._refused(outcome, waiting.large, why))

    def _refused(self, outcome: Outcome, large: LargeBody, why: str = "") -> Refused:
        """Count, log and answer that no parser says anything."""
        refusal = REFUSALS[outcome]
        self._metrics.large_bodies.labels(outcome).inc()
        suppressed = self._throttle.admit(outcome)
        if suppressed is not None:
            extra = {"parser": large.instance.name, "size_bytes": len(large.body), "suppressed": suppressed}
            _log.warning("%s%s", refusal.advice, f": {why}" if why else "", extra=extra)
        return refusal.answer


def spec_of(instance: Instance, lock_file: Path | None) -> Spec:
    """What the helper needs to build a parser like this one."""
    from endpick.serve.bodies.wire import Spec  # noqa: PLC0415

    assert instance.candidate is not None, "an instance that was not built from an installed plugin has no double"
    parameters = {} if instance.place is None else instance.place.block()
    return Spec(instance.name, instance.candidate, parameters, None if lock_file is None else str(lock_file.absolute()))


_OUTCOME_OF = {BodyRead: Outcome.PARSED, Rejection: Outcome.REJECTED, ParserFailed: Outcome.FAILED}


def _answer_of(told: Told) -> BodyRead | Rejection | ParserFailed:
    """The parser's answer; what is in it is judged as if the parser had made it here."""
    try:
        return _read(told)
    except (TypeError, ValueError, IndexError) as problem:
        return ParserFailed("parse", ElsewhereError(f"its answer cannot be used: {problem}"), told.head.seconds)


def _read(told: Told) -> BodyRead | Rejection | ParserFailed:
    """Raises TypeError, ValueError or IndexError for what is no answer."""
    head, pieces, prompts = told.head, told.pieces, told.prompts
    if head.kind == "failed":
        return ParserFailed(head.method, ElsewhereError(head.problem), head.seconds)
    if head.kind == "rejected":
        return Rejection(_text(pieces[0]), head.status, _text(pieces[1]))
    texts = pieces[2:]
    parsed = ParsedRequest(
        model=_text(pieces[0]),
        prompt=Prompt(lambda: texts, None if prompts is None else lambda: read_all(prompts)),
        streaming=head.streaming,
        max_output_tokens=head.max_output_tokens,
        cache_salt=_text(pieces[1]),
        needs_model=head.needs_model,
        skip_response=head.skip_response,
    )
    return BodyRead(parsed, told.body, head.seconds)


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "surrogatepass")
