"""Signals, reloads and ends at bad moments, of the picker itself and of second ones that are besieged while they go."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from shutil import copyfile

from benchmarks.attempts.catalogue import CONFIG, Attempt, Target
from benchmarks.attempts.connections import knock, source_of
from benchmarks.attempts.connections_frames import block, said
from benchmarks.attempts.connections_grpc import asking, message
from benchmarks.attempts.gateway import HELLO, answered, connected, data, grpc, headers_message, opened, request, send_flow_controlled
from benchmarks.attempts.second import PLAIN, Second, asked, command_of, refused, second
from endpick.transport.h2 import frames
from endpick.transport.h2.frames import PREFACE

_QUEUES = """\
featureGates: [flowControl]
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  defaultRequestTTL: 20s
"""
_DETECTOR = "- {type: concurrency-detector, parameters: {maxConcurrency: 1}}\n"
WAITING = CONFIG.replace("plugins:\n", f"plugins:\n{_DETECTOR}", 1) + _QUEUES
"""Requests wait for their turn: each endpoint takes one."""
_SIGNALS_WITHOUT_A_MEANING = (
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE, signal.SIGCHLD),
    *(signal.SIGWINCH, signal.SIGURG, signal.SIGCONT),
)
_LARGE = request(b'{"model":"m","messages":[' + b'{"role":"user","content":"x"},' * 12_000 + b'{"role":"user","content":"x"}]}')
"""Little enough for the window of a stream, and of so much structure that a helper parses it."""
_LONGEST_SECONDS = 25.0
"""From SIGTERM, with a drain time of a second and five to finish."""


def kept(config: str) -> tuple[str, ...]:
    """Configurations that are to be refused, or to change nothing for who asks: wrong, cut, huge, deep, empty, with other names."""
    return (
        config[: len(config) // 2],
        config + "\0",
        config + "# " + "x" * 2_000_000,
        config + "a: " + "[" * 50_000,
        "a: &a [x, x]\n" + "".join(f"{chr(98 + at)}: &{chr(98 + at)} [*{chr(97 + at)}, *{chr(97 + at)}]\n" for at in range(20)),
        "",
        config.replace("queue-scorer", "queue-scorer-of-no-plugin"),
        config.replace("weight: 2", "weight: .nan"),
        "\ufeff" + config,
    )


def write(path: Path, text: str) -> None:
    """Replace a file by a whole one, whatever it was."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


async def reloads_without_rest(target: Target) -> Iterable[str]:
    """SIGHUP by the hundred while the configuration is right, wrong, cut, huge, deep, a FIFO, a directory or gone, beside requests."""
    path = target.folder / "config.yaml"
    waiting = HELLO + b"".join(opened(at) + data(at, PLAIN) for at in range(1, 60, 2))
    shut = asyncio.gather(*(said(target, waiting, seconds=1.5) for _ in range(4)), return_exceptions=True)
    try:
        for _ in range(12):
            text = target.rng.choice((WAITING, CONFIG, *kept(CONFIG)))
            match target.rng.randrange(8):
                case 0:
                    path.unlink()
                    os.mkfifo(path)
                case 1:
                    path.unlink()
                case _:
                    write(path, text)
            for _ in range(target.rng.choice((1, 200))):
                os.kill(target.pid, signal.SIGHUP)
            await asyncio.sleep(0.1)
    finally:
        write(path, CONFIG)
        os.kill(target.pid, signal.SIGHUP)
    await shut
    return refused([await asked(target.ext_proc_port, seconds=20)], "after reloads that were wrong")


async def signals_without_a_meaning(target: Target) -> None:
    """Thousands of SIGUSR1, SIGUSR2, SIGPIPE, SIGCHLD, SIGWINCH, SIGURG and SIGCONT, one by one and all at once."""
    for _ in range(30):
        for _ in range(100):
            os.kill(target.pid, target.rng.choice(_SIGNALS_WITHOUT_A_MEANING))
        await asyncio.sleep(0.01)


async def stopped_and_continued(target: Target) -> None:
    """SIGSTOP for up to 0.4 s and SIGCONT, again and again, while requests come and connections go."""
    for _ in range(4):
        os.kill(target.pid, signal.SIGSTOP)
        try:
            speaking = asyncio.gather(
                *(said(target, HELLO + opened(1) + data(1, PLAIN), seconds=0.4) for _ in range(30)), return_exceptions=True
            )
            await asyncio.sleep(target.rng.random() * 0.4)
        finally:
            os.kill(target.pid, signal.SIGCONT)
        await speaking


async def helpers_that_are_killed(target: Target) -> Iterable[str]:
    """Each process that the picker has started is killed, ended, stopped or continued every 0.1 s while large bodies come."""

    async def ask() -> None:
        async with connected(target.ext_proc_port) as (reader, writer):
            await send_flow_controlled(reader, writer, 1, _LARGE)
            await answered(reader, 1.5)

    bodies = asyncio.gather(*(ask() for _ in range(6)), return_exceptions=True)
    met = 0
    for _ in range(15):
        for child in _children(target.pid):
            with suppress(ProcessLookupError):
                os.kill(child, target.rng.choice((signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGCONT, signal.SIGSEGV)))
                met += 1
        await asyncio.sleep(0.1)
    await bodies
    return [] if met else ["no helper was met"]


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def _besiege(target: Target, made: Second, crowd: ExitStack) -> None:
    """Have connections of all kinds held on it: silent ones, requests that wait, half or unread ones, watches."""
    half = b"".join(opened(at) + data(at, grpc([headers_message()])) for at in range(1, 100, 2))
    watch = asking(1, block(**{":path": b"/grpc.health.v1.Health/Watch"}), message(b""))
    words = (
        b"",
        HELLO,
        HELLO[:20],
        HELLO + half,
        HELLO + watch,
        PREFACE + frames.settings({4: 0}) + b"".join(opened(at) + data(at, PLAIN) for at in range(1, 200, 2)),
        HELLO + b"".join(opened(at) + data(at, PLAIN) for at in range(1, 200, 2)),
        HELLO + opened(1) + data(1, _LARGE),
        b"GET /metrics HTTP/1.1\r\nhost: x\r\n",
    )
    picker = made.picker
    for at in range(120):
        port = target.rng.choice(
            (picker.ext_proc_port, picker.ext_proc_port, picker.ext_proc_port, picker.health_port, picker.metrics_port)
        )
        each = crowd.enter_context(knock(port, source_of(target), target.rng.choice((0, 2048))))
        with suppress(OSError):
            each.send(target.rng.choice(words))
        if not at % 10:
            await asyncio.sleep(0.01)


async def ended_under_siege(target: Target) -> Iterable[str]:
    """SIGTERM for a second picker with 120 connections of all kinds, requests in queues and behind shut windows, that gets more."""
    async with second(target, config=WAITING) as made:
        with ExitStack() as crowd:
            await _besiege(target, made, crowd)
            made.signal(signal.SIGTERM)
            with suppress(ProcessLookupError):
                while made.picker.process.poll() is None and target.seconds_left() > 1:
                    await _besiege(target, made, crowd)
            await made.ended(_LONGEST_SECONDS)
    return made.told


async def told_to_end_again_and_again(target: Target) -> Iterable[str]:
    """SIGTERM, and in the drain and after it SIGTERM, SIGINT, SIGHUP, SIGSTOP, SIGUSR1 or SIGPIPE at moments of chance, in a siege."""
    rng = target.rng
    async with second(target, "--drain-timeout=2s", config=WAITING) as made:
        with ExitStack() as crowd:
            await _besiege(target, made, crowd)
            made.signal(signal.SIGTERM)
            ends = 1
            for _ in range(rng.randrange(3, 12)):
                await asyncio.sleep(rng.random() * 0.4)
                sent = rng.choice((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGSTOP, *_SIGNALS_WITHOUT_A_MEANING))
                if sent in (signal.SIGTERM, signal.SIGINT):
                    ends += 1
                made.signal(sent)
                if sent is signal.SIGSTOP:
                    await asyncio.sleep(0.1)
                    made.signal(signal.SIGCONT)
            await made.ended(_LONGEST_SECONDS)
        # A second one in the finish, or a third at all, ends the process at once, and says so in words of its own.
        made.ends_with, made.logs_whole_lines = ((0,), True) if ends == 1 else ((0, 5), False)
    return made.told


async def asked_in_the_drain(target: Target) -> Iterable[str]:
    """Requests on new connections to a second picker from SIGTERM to the end of its drain time, while it reloads and is besieged."""
    async with second(target, "--drain-timeout=4s") as made:
        with ExitStack() as crowd:
            await _besiege(target, made, crowd)
            made.signal(signal.SIGTERM)
            for _ in range(50):
                made.signal(signal.SIGHUP)
            answers = []
            for _ in range(10):
                answers.append(await asked(made.picker.ext_proc_port, seconds=2))
                await asyncio.sleep(0.1)
            made.told += refused(answers, "in the drain time")
        await made.ended(_LONGEST_SECONDS)
    return made.told


async def signalled_while_it_starts(target: Target) -> Iterable[str]:
    """SIGHUP, SIGUSR1, SIGPIPE and then SIGTERM at a moment of chance in the start of a further process, with its imports and ports."""
    words, folder = command_of(target), target.folder / "starting"
    folder.mkdir(exist_ok=True)
    for name in ("config.yaml", "endpoints.yaml"):
        copyfile(target.folder / name, folder / name)
    told = []
    with (folder / "log").open("w") as log:
        environment = {**os.environ, "SIEGE_TIMELINE": str(folder / "timeline"), "PYTHONPATH": f"{target.folder / 'site'}:{Path.cwd()}"}
        process = await asyncio.create_subprocess_exec(*words, cwd=folder, stdout=log, stderr=log, env=environment)
        try:
            # What comes before Python runs endpick ends Python as it does any program.
            while not _listens(process.pid) and process.returncode is None:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.005)
            for _ in range(target.rng.randrange(6)):
                process.send_signal(target.rng.choice((signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE)))
                await asyncio.sleep(target.rng.random() * 0.3)
            process.send_signal(signal.SIGTERM)
            code = await asyncio.wait_for(process.wait(), _LONGEST_SECONDS)
            if code:
                told.append(f"a process that was told to end in its start ended with {code}")
        except TimeoutError:
            told.append("a process that was told to end in its start did not")
        finally:
            with suppress(ProcessLookupError):
                process.kill()
    return told


def _listens(pid: int) -> bool:
    """Whether the process handles SIGHUP by now."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) & 1 << (signal.SIGHUP - 1))
    return False


async def _lives_without_its_log(target: Target, made: Second) -> None:
    """It goes on answering while reloads and wrong requests have it log, and ends in order."""
    made.logs_whole_lines = False
    answers = []
    for _ in range(6):
        for _ in range(40):
            made.signal(signal.SIGHUP)
            await asyncio.sleep(0.005)
        write(made.picker.folder / "config.yaml", target.rng.choice((CONFIG, *kept(CONFIG))))
        answers.append(await asked(made.picker.ext_proc_port))
    made.told += refused(answers, "while nothing took the log")
    made.signal(signal.SIGTERM)
    await made.ended(_LONGEST_SECONDS)


async def no_reader_of_the_log(target: Target) -> Iterable[str]:
    """A second picker whose output is a pipe that is closed once it serves, or that is not read: reloads, requests, the end."""
    goes = target.rng.randrange(2)
    reading = "sed -u '/\"serving\"/q'" if goes else "{ sed -u '/\"serving\"/q'; sleep 15; }"
    async with second(target, before=f"mkfifo out; {reading} <out &") as made:
        await _lives_without_its_log(target, made)
    return made.told


async def no_room_for_the_log(target: Target) -> Iterable[str]:
    """A second picker that may write files of 8 KiB, as on a full disk: reloads, requests, the end."""
    async with second(target, before="ulimit -f 8; export SIEGE_TIMELINE=/dev/null") as made:
        await _lives_without_its_log(target, made)
    return made.told


ATTEMPTS = (
    Attempt(reloads_without_rest),
    Attempt(signals_without_a_meaning),
    Attempt(stopped_and_continued),
    Attempt(helpers_that_are_killed),
    Attempt(ended_under_siege),
    Attempt(told_to_end_again_and_again),
    Attempt(asked_in_the_drain),
    Attempt(signalled_while_it_starts),
    Attempt(no_reader_of_the_log),
    Attempt(no_room_for_the_log),
)
