"""Further pickers whose log an attempt reads, as text and as JSON, and what may not stand in it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
import threading
import unicodedata
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.attempts.catalogue import CONFIG, Target
from benchmarks.attempts.gateway import HELLO, answered, connected, data, opened
from benchmarks.attempts.locked_site import python_of
from benchmarks.extproc.plan import endpoints_file

FORGED = "forged-by-a-client"
LINES = (f"12:00:00 info    endpick.serve: {FORGED}", f'{{"ts":"2026","level":"critical","logger":"endpick.serve","event":"{FORGED}"}}')
ODD = (
    *("\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\x1b[2K\x1b[1A", "\x9b1A", "\x1b]0;t\x07"),
    *("\b\b\b\b", "\0", "\x7f", "\u202e", "\u2066", "\u200b", "\ufeff", "\U000e0041", "\xad", "\u061c", "\u180e", "\u3164", "\ufff9"),
    *('"', '"}\n', "\\", "\\n", "\\u000a", "%s%n", "{0}", '",\n"level":"critical', "  level=critical", "\ud800", "\x1b[31m\n  "),
)
"""What could end a line, command a terminal, or show as nothing."""
_LEVELS = ("debug", "info", "warning", "error", "critical")
_TEXT_LINE = re.compile(r'\d\d:\d\d:\d\d (debug  |info   |warning|error  |critical) ([^\s"]+|"([^"\\]|\\.)*"): ')
_DIAGNOSTIC = re.compile(r"(error|warning)\[[EW]\d{4}\]: |  --> | *\d* \||   = |$")
"""At the start what is wrong is told as by any command, on standard error, in lines of its own."""
_SHOWN = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u0890\u0891\u08e2")
"""Of the class of formats, but signs of numbers and verses that are seen."""


def hostile_texts() -> list[str]:
    """Each odd text around a line as endpick writes it, in either format."""
    return [f"x{odd}{line}{odd}y" for odd in ODD for line in LINES]


def sent(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def wrong_lines(log: bytes, log_format: str) -> Iterator[str]:
    """What a log may not have: lines that are none, forged lines, characters that are not shown as they are."""
    for raw in log.split(b"\n")[:-1]:
        line = raw.decode(errors="surrogateescape")
        odd = [each for each in line if unicodedata.category(each) in ("Cc", "Cf", "Zl", "Zp", "Cs") and each not in _SHOWN]
        if odd:
            yield f"the {log_format} log has {odd[:3]!r} in a line: {line[:200]!r}"
        if _DIAGNOSTIC.match(line):
            continue
        if log_format == "json":
            yield from _wrong_json(line)
        elif not _TEXT_LINE.match(line) and not line.startswith("  "):
            yield f"the text log has a line of another kind: {line[:200]!r}"
        elif line.startswith(LINES[0]):
            yield f"the text log has a forged line: {line[:200]!r}"


def _wrong_json(line: str) -> Iterator[str]:
    try:
        pairs = json.loads(line, object_pairs_hook=list)
    except ValueError:
        yield f"the JSON log has a line that is none: {line[:200]!r}"
        return
    names = [name for name, _ in pairs]
    if any(names.count(name) != 1 for name in ("ts", "level", "logger", "event")) or dict(pairs)["level"] not in _LEVELS:
        yield f"a line of JSON says something twice, or not at all: {line[:200]!r}"
    elif dict(pairs)["event"] == FORGED:
        yield f"the JSON log has a forged line: {line[:200]!r}"


@dataclass(frozen=True, slots=True)
class Further:
    """A picker of the attempt's own."""

    process: asyncio.subprocess.Process
    folder: Path
    log_format: str
    ports: Mapping[str, int]
    """Of `ext_proc`, `health` and `metrics`; empty while it does not serve."""
    read: threading.Event
    """While it is not set nothing reads what the picker writes; what is read stands in `log`."""

    def log(self) -> bytes:
        return (self.folder / "log").read_bytes()


@asynccontextmanager
async def further(
    target: Target,
    log_format: str,
    flags: Sequence[str] = (),
    *,
    config: str = CONFIG,
    files: Mapping[str, str | bytes] | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float = 20.0,
) -> AsyncIterator[Further]:
    """A picker beside the target's, ended after the block; it may be one that does not come to serve within so many seconds."""
    with tempfile.TemporaryDirectory(dir=target.folder) as place:
        folder = Path(place)
        given = {"config.yaml": config, "endpoints.yaml": endpoints_file(3, target.model_server_port), **(files or {})}
        for name, content in given.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
        command = [python_of(target), "-m", "endpick", "serve", "config.yaml", "--host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0"]
        command += ["--metrics-port=0", "--secure-serving=false", "--drain-timeout=0s", f"--log-format={log_format}", "--v=4", *flags]
        surroundings = {
            **os.environ,
            "PYTHONPATH": f"{folder / 'site'}:{target.folder / 'site'}",
            "SIEGE_TIMELINE": str(folder / "timeline"),
            **(environment or {}),
        }
        output, written = os.pipe()
        process = await asyncio.create_subprocess_exec(*command, cwd=folder, env=surroundings, stdout=written, stderr=written)
        os.close(written)
        read = threading.Event()
        read.set()
        (folder / "log").touch()
        reading = threading.Thread(target=_read, args=(output, folder / "log", read), daemon=True)
        reading.start()
        try:
            ports = await _ports(process, folder / "log", seconds)
            yield Further(process, folder, log_format, ports, read)
        finally:
            read.set()
            if process.returncode is None:
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 25)
            except TimeoutError:
                process.kill()
                await process.wait()
            reading.join(5)


def _read(output: int, log: Path, read: threading.Event) -> None:
    with os.fdopen(output, "rb", buffering=0) as source, log.open("ab", buffering=0) as kept:
        while piece := source.read(65_536):
            kept.write(piece)
            read.wait()


async def _ports(process: asyncio.subprocess.Process, log: Path, seconds: float) -> dict[str, int]:
    for _ in range(round(seconds / 0.05)):
        text = log.read_text(errors="replace")  # noqa: ASYNC240 - a short file
        found = {name: re.search(rf'{name}_port"?[=:] ?(\d+)', text) for name in ("ext_proc", "health", "metrics")}
        if all(found.values()):
            return {name: int(each[1]) for name, each in found.items() if each is not None}
        if process.returncode is not None:
            return {}
        await asyncio.sleep(0.05)
    return {}


@asynccontextmanager
async def both_formats(target: Target, flags: Sequence[str] = (), **more: object) -> AsyncIterator[list[Further]]:
    """One picker that logs JSON and one that logs text."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(further(target, each, flags, **more)) for each in ("json", "text")]  # type: ignore[arg-type]


async def until(picker: Further, word: str, seconds: float = 10.0) -> None:
    """Until the log has a word, or for so long."""
    for _ in range(round(seconds / 0.1)):
        if is_logged(picker, word):
            return
        await asyncio.sleep(0.1)


def is_logged(picker: Further, word: str) -> bool:
    """Whether the log has a word by now."""
    return sent(word) in picker.log()


def judged(pickers: Iterable[Further], *expected: str) -> list[str]:
    """What is wrong with their logs. The attempt was none where what it made up, or what it expected, is in no line."""
    found = []
    for picker in pickers:
        log = picker.log()
        found += wrong_lines(log, picker.log_format)
        found += [
            f"the attempt was none: {word!r} is not in the {picker.log_format} log"
            for word in expected or (FORGED,)
            if sent(word) not in log
        ]
    return found[:20]


async def say(port: int, payloads: Iterable[bytes]) -> None:
    """Each on a stream of its own."""
    with suppress(OSError):
        async with connected(port) as (reader, writer):
            writer.write(HELLO)
            for number, payload in enumerate(payloads):
                writer.write(opened(2 * number + 1) + data(2 * number + 1, payload))
            await answered(reader, 1.0)
