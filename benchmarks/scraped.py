"""What fetching pages of the metrics port every second costs requests: the 99th percentile of the pick with and without, in turns.

`python -m benchmarks.scraped`, and `--pages /plan,/endpoints,/decisions,/plugins` for the admin API. The page of metrics has a thousand
series and more: requests came under five models of five tenants each.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Sequence

import aiohttp
import uvloop

from benchmarks.extproc.messages import Conversation, conversations
from benchmarks.extproc.phased import phases
from benchmarks.extproc.plan import serving
from benchmarks.extproc.steady import Steady
from benchmarks.model_server import model_server

_STREAMS, _PAUSE_SECONDS = 4, 0.008
_WARM_SECONDS = 0.5


async def window(port: int, metrics_port: int, seconds: float, pages: Sequence[str]) -> tuple[float, int]:
    """The 99th percentile of the pick in milliseconds, and the bytes of the pages."""
    picks: list[float] = []
    scripts = [phases(_named(conversations()[0], number), "plan") for number in range(5)]
    make = lambda: Steady(scripts, random.Random(1), picks, _STREAMS, _PAUSE_SECONDS)  # noqa: E731
    _, gateway = await asyncio.get_running_loop().create_connection(make, "127.0.0.1", port)
    await asyncio.sleep(_WARM_SECONDS)
    picks.clear()
    until, size = time.monotonic() + seconds, 0
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < until:
            await asyncio.sleep(1)
            size = 0
            for page in pages:
                async with session.get(f"http://127.0.0.1:{metrics_port}{page}") as response:
                    response.raise_for_status()
                    size += len(await response.read())
    gateway.transport.abort()
    return sorted(picks)[int(len(picks) * 0.99)] * 1e3, size


def _named(conversation: Conversation, number: int) -> Conversation:
    """The same under another model's name of the same length."""
    return Conversation(conversation.name, tuple(message.replace(b"llama", b"lla%02d" % number) for message in conversation.messages))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scraped", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5, help="of each window")
    parser.add_argument("--pages", default="/metrics", help="separated by commas (%(default)s)")
    parser.add_argument("--endpoints", type=int, default=16)
    parser.add_argument("--python", default=sys.executable, help="the interpreter for which endpick is installed")
    options = parser.parse_args()
    pages = options.pages.split(",")
    quiet, scraped, size = [], [], 0
    with model_server(1) as model_port, serving(options.python, "h2", 0, options.endpoints, None, model_port) as (port, metrics_port, _pid):
        for _ in range(options.rounds):
            quiet.append(uvloop.run(window(port, metrics_port, options.seconds, ()))[0])
            found, size = uvloop.run(window(port, metrics_port, options.seconds, pages))
            scraped.append(found)
    cost = statistics.median(scraped) - statistics.median(quiet)
    print(f"p99 of the pick, medians of {options.rounds} windows: {statistics.median(quiet):.2f} ms without, ", end="")
    print(f"{statistics.median(scraped):.2f} ms with {size} bytes a second of {', '.join(pages)}: {cost:+.2f} ms")


if __name__ == "__main__":
    main()
