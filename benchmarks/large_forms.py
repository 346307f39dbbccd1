"""What the worst forms cost, and how long honest requests wait beside one: `python -m benchmarks.large_forms`.

Parses forms of 32 MB whose part heads are as long as they may be and resemble a field's head as long as they can. Then a picker serves
honest requests, each on its own connection for an attacker's form of 440 KB every half second: prints the slowest pick in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from contextlib import suppress

import uvloop

from benchmarks.extproc.messages import conversations
from benchmarks.extproc.phased import phases
from benchmarks.extproc.plan import serving
from benchmarks.extproc.steady import Steady
from benchmarks.model_server import model_server
from benchmarks.soak.hostile import HELLO, request, stream
from endpick_builtin.parsers.forms import MAX_HEAD_BYTES, Form

TYPE = "multipart/form-data; boundary=x9"
PATH = "/v1/audio/transcriptions"
LINES = (
    b"content-disposition:",
    b"content-disposition:\r\n",
    b'content-disposition:;name="',
    b'content-disposition:;name="\r\n',
    b"content-disposition:; ",
    b"content-disposition:" + b";" * 4000 + b"\r\n",
    b"content-disposition:" + b"; " * 2000 + b"\r\n",
    b"content-disposition:;" + b" " * 4000 + b"\r\n",
)


def form(line: bytes, size: int, head: int = MAX_HEAD_BYTES) -> bytes:
    """A body of about this size whose parts have heads of `head` bytes."""
    part = b"--x9\r\n" + (line * (head // len(line) + 1))[: head - 6] + b"\r\n\r\nv\r\n"
    return part * max(1, size // len(part)) + b"--x9--\r\n"


def parse(body: bytes) -> float:
    """Seconds for one form."""
    began = time.perf_counter()
    with suppress(ValueError):  # it names no field
        Form(TYPE, body)
    return time.perf_counter() - began


async def slowest_pick(port: int, seconds: float, attack: bytes | None) -> float:
    """The slowest pick of honest requests in milliseconds."""
    picks: list[float] = []
    scripts = [phases(conversations()[0], "plan")]
    _, gateway = await asyncio.get_running_loop().create_connection(
        lambda: Steady(scripts, random.Random(1), picks, 4, 0.008), "127.0.0.1", port
    )
    await asyncio.sleep(0.5)
    picks.clear()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if attack is not None:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HELLO + stream(1, attack))
            await asyncio.sleep(0.5)
            writer.close()
        else:
            await asyncio.sleep(0.5)
    seen = len(picks)
    while len(picks) == seen:  # noqa: ASYNC110 - a picker that stands still answers late
        await asyncio.sleep(0.01)
    gateway.transport.abort()
    return max(picks) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_forms", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5, help="of each window")
    parser.add_argument("--python", default=sys.executable, help="the interpreter for which endpick is installed")
    options = parser.parse_args()
    times = {line[:40]: parse(form(line, 32_000_000)) for line in LINES}
    worst = max(times, key=lambda line: times[line])
    print(f"32 MB: {times[worst]:.2f} s at the most, for heads of {worst!r}")
    headers = {":path": PATH, "content-type": TYPE}
    with model_server(1) as model_port, serving(options.python, "h2", 0, 4, None, model_port) as (port, _, _pid):
        alone = uvloop.run(slowest_pick(port, options.seconds, None))
        print(f"slowest honest pick: {alone:.0f} ms alone")
        for name, body in (
            ("heads of 8 KB", form(LINES[0], 440_000)),
            ("one head of 440 KB", form(LINES[0], 440_000, 440_000)),
        ):
            beside = uvloop.run(slowest_pick(port, options.seconds, request(body, headers)))
            print(f"slowest honest pick: {beside:.0f} ms beside forms of 440 KB with {name}")


if __name__ == "__main__":
    main()
