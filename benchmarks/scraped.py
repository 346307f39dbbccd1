"""What scraping `/metrics` every second costs requests: the 99th percentile of the pick with scrapes and without, in turns.

`python -m benchmarks.scraped`. The page has a thousand series and more: requests came under five models of five tenants each.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time

import aiohttp
import uvloop

from benchmarks.extproc.messages import Conversation, conversations
from benchmarks.extproc.phased import phases
from benchmarks.extproc.plan import serving
from benchmarks.extproc.steady import Steady
from benchmarks.model_server import model_server

_STREAMS, _PAUSE_SECONDS = 4, 0.008
_WARM_SECONDS = 0.5


async def window(port: int, metrics_port: int | None, seconds: float) -> tuple[float, int]:
    """The 99th percentile of the pick in milliseconds, and how many series the page has; 0 without scrapes."""
    picks: list[float] = []
    scripts = [phases(_named(conversations()[0], number), "plan") for number in range(5)]
    make = lambda: Steady(scripts, random.Random(1), picks, _STREAMS, _PAUSE_SECONDS)  # noqa: E731
    _, gateway = await asyncio.get_running_loop().create_connection(make, "127.0.0.1", port)
    await asyncio.sleep(_WARM_SECONDS)
    picks.clear()
    until, series = time.monotonic() + seconds, 0
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < until:
            await asyncio.sleep(1)
            if metrics_port is not None:
                async with session.get(f"http://127.0.0.1:{metrics_port}/metrics") as response:
                    page = await response.read()
                series = sum(not line.startswith(b"#") for line in page.splitlines())
    gateway.transport.abort()
    return sorted(picks)[int(len(picks) * 0.99)] * 1e3, series


def _named(conversation: Conversation, number: int) -> Conversation:
    """The same under another model's name of the same length."""
    return Conversation(conversation.name, tuple(message.replace(b"llama", b"lla%02d" % number) for message in conversation.messages))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scraped", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5, help="of each window")
    options = parser.parse_args()
    quiet, scraped, series = [], [], 0
    with model_server(1) as model_port, serving(sys.executable, "h2", 0, 16, None, model_port) as (port, metrics_port, _pid):
        for _ in range(options.rounds):
            quiet.append(uvloop.run(window(port, None, options.seconds))[0])
            found, series = uvloop.run(window(port, metrics_port, options.seconds))
            scraped.append(found)
    cost = statistics.median(scraped) - statistics.median(quiet)
    print(f"p99 of the pick, medians of {options.rounds} windows: {statistics.median(quiet):.2f} ms without scrapes, ", end="")
    print(f"{statistics.median(scraped):.2f} ms with one a second of {series} series: {cost:+.2f} ms")


if __name__ == "__main__":
    main()
