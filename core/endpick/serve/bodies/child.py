"""The helper process: parses the bodies that `endpick serve` sends it through a socket, one at a time, until the socket is closed."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import pickle
import resource
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import BinaryIO, cast

from endpick.api.request import ParsedRequest, Rejection
from endpick.data.model_rules import choose_model
from endpick.host.failures import kind_of
from endpick.host.importing import describe, place
from endpick.serve.bodies.double import Double, LogLines, NotBuiltError, double_of, starts_or_stops
from endpick.serve.bodies.layout import laid_out
from endpick.serve.bodies.wire import FRAME, BuildJob, Head, ParseJob, shortened
from endpick.serve.uncaught import Uncaught

_PR_SET_PDEATHSIG = 1
_RETIRES_BYTES = 512 * 1024 * 1024
"""A helper that keeps so much more memory than it had at first makes way for a new one."""


def main(descriptor: int, parent: int, log_level: int) -> None:
    """Serve until the socket ends.

    Args:
        descriptor: Of the socket.
        parent: Process id of `endpick serve`; the helper does not outlive it.
        log_level: What is logged below it is not told.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches all processes: the parent decides what it means
    _end_with(parent)
    lines = LogLines()
    logging.basicConfig(level=log_level, handlers=[lines], force=True)
    uncaught = Uncaught()  # what is printed, or raised where no call stands, becomes lines as well: the outputs are those of the parent
    with socket.socket(fileno=descriptor) as channel, channel.makefile("rb") as incoming, asyncio.Runner() as runner:
        helper = Helping(channel, incoming, runner, lines)
        uncaught.install(runner.get_loop())
        with uncaught.output_taken(), suppress(ConnectionError):  # the parent may be gone amid a body
            while helper.answer_next():
                pass
            helper.stop()


def _end_with(parent: int) -> None:
    """Have the kernel end this process with its parent, also while it parses; elsewhere than on Linux the end of the socket has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)


class _FailedError(Exception):
    """A method of the parser raised, or answered nonsense."""

    def __init__(self, method: str, problem: str) -> None:
        super().__init__(problem)
        self.method = method


class Helping:
    """Answers one job after the other."""

    def __init__(self, channel: socket.socket, incoming: BinaryIO, runner: asyncio.Runner, lines: LogLines) -> None:
        self._channel = channel
        self._incoming = incoming
        self._runner = runner
        self._lines = lines
        self._doubles: list[Double] = []
        self._first_bytes = mapped_bytes()

    def answer_next(self) -> bool:
        """Wait for a job and answer it; False when there will be none."""
        frame = self._incoming.read(FRAME.size)
        if len(frame) < FRAME.size:
            return False
        head_bytes, body_bytes = FRAME.unpack(frame)
        head = self._incoming.read(head_bytes)
        body = self._incoming.read(body_bytes)
        if len(head) + len(body) < head_bytes + body_bytes:
            return False
        job = pickle.loads(head)  # noqa: S301 - from the parent alone, through a socket without a name
        if isinstance(job, BuildJob):
            self._answer(self._build(job), ())
        else:
            self._parse(job, body)
        return True

    def stop(self) -> None:
        """Stop the parsers that have something to stop."""
        for double in self._doubles:
            if starts_or_stops(double.plugin, "stop"):
                self._runner.run(double.plugin.stop())

    def _build(self, job: BuildJob) -> dict[str, object]:
        try:
            double = double_of(job.spec)
            if starts_or_stops(double.plugin, "start"):
                self._runner.run(double.plugin.start())
        except NotBuiltError as problem:
            return {"kind": "unbuilt", "problem": shortened(str(problem))}
        except Exception as problem:
            return {"kind": "unbuilt", "problem": shortened(describe(problem))}
        self._doubles.append(double)
        return {"kind": "built"}

    def _parse(self, job: ParseJob, body: bytes) -> None:
        double = self._doubles[job.parser]
        begun = perf_counter()
        pieces: Sequence[bytes] = ()
        try:
            with memory_limited(job.memory_bytes):
                head, pieces = _parsed(double, job, body)
        except MemoryError:
            head = {"kind": "exhausted"}
        except _FailedError as failure:
            head = {"kind": "failed", "method": failure.method, "problem": shortened(str(failure))}
        head["seconds"] = perf_counter() - begun
        head["retires"] = head["kind"] == "exhausted" or mapped_bytes() > self._first_bytes + _RETIRES_BYTES
        self._answer(head, pieces)

    def _answer(self, head: dict[str, object], pieces: Sequence[bytes]) -> None:
        told = Head.model_validate({**head, "pieces": tuple(map(len, pieces)), "logs": self._lines.take()})
        written = told.model_dump_json(exclude_defaults=True).encode()
        self._channel.sendall(FRAME.pack(len(written), sum(told.pieces)) + written)
        for piece in pieces:
            self._channel.sendall(piece)


def _parsed(double: Double, job: ParseJob, body: bytes) -> tuple[dict[str, object], Sequence[bytes]]:
    """Head and pieces of what the parser says.

    Raises:
        MemoryError: it took more than it may.
        _FailedError: it failed.
    """
    plugin = double.plugin
    with _blamed_on("parse"):
        answer = cast("object", plugin.parse(job.path, job.headers, body))
        if isinstance(answer, Rejection):
            return {"kind": "rejected", "status": answer.status}, (_bytes(answer.message), _bytes(answer.reason))
        if not isinstance(answer, ParsedRequest):
            raise _FailedError("parse", f"answered {kind_of(answer)}, not a ParsedRequest or Rejection")
        texts = cast("tuple[object, ...]", answer.prompt.texts)
        if not all(isinstance(text, bytes) for text in texts):
            raise _FailedError("parse", "rendered a prompt that is not bytes")
        pieces = laid_out(answer.prompt.pieces) if answer.prompt.media else ()
    target = choose_model(job.rewrites, answer.model, job.draw) or job.rewrite or answer.model
    rewritten: object = None
    if target != answer.model:
        with _blamed_on("rewrite_model"):
            rewritten = plugin.rewrite_model(body, answer, target)
            if not isinstance(rewritten, bytes):
                raise _FailedError("rewrite_model", f"answered {kind_of(rewritten)}, not the bytes of a body")
    changed = () if rewritten is None or rewritten == body else (cast("bytes", rewritten),)
    head: dict[str, object] = {
        "kind": "parsed",
        "streaming": answer.streaming,
        "max_output_tokens": answer.max_output_tokens,
        "needs_model": answer.needs_model,
        "skip_response": answer.skip_response,
        "media": bool(pieces),
        "rewritten": bool(changed),
    }
    return head, (_bytes(answer.model), _bytes(answer.cache_salt), *cast("tuple[bytes, ...]", texts), *pieces, *changed)


@contextmanager
def _blamed_on(method: str) -> Iterator[None]:
    """Whatever the parser raises is its failure, `sys.exit()` included; only a lack of memory is the body's."""
    try:
        yield
    except (MemoryError, _FailedError):
        raise
    except BaseException as problem:
        where = place(problem)
        raise _FailedError(method, describe(problem) + (f", at {where}" if where else "")) from problem


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


@contextmanager
def memory_limited(more_bytes: int) -> Iterator[None]:
    """Let this process map no more than so much memory beyond what it has; no limit where the kernel does not say what that is."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    mapped = mapped_bytes()
    if not mapped:
        yield
        return
    limit = mapped + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit if before[1] == resource.RLIM_INFINITY else min(limit, before[1]), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def mapped_bytes() -> int:
    """The address space of this process; 0 where the kernel does not say."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()
