"""Serves and asks in a network namespace of its own, whose loopback is slow and loses packets; prints what became of the requests.

unshare --net python -m integration.serve.slow_network FOLDER REQUESTS
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from integration.plugins.serving import serving

SHAPES = (
    ("netem", "delay", "10ms", "5ms", "loss", "3%"),
    # Where the kernel has no netem: what is more than a bucket of 20 kB holds is lost.
    ("tbf", "rate", "4mbit", "burst", "20kb", "limit", "40kb"),
)


def shaped() -> str:
    """Make loopback slow and lossy; how."""
    subprocess.run(["ip", "link", "set", "lo", "mtu", "1500", "gso_max_size", "1500", "gso_max_segs", "1", "up"], check=True)
    for shape in SHAPES:
        if subprocess.run(["tc", "qdisc", "add", "dev", "lo", "root", *shape], capture_output=True, check=False).returncode == 0:
            return " ".join(shape)
    return ""


async def asked(folder: Path, count: int) -> dict[str, object]:
    """What became of so many requests, of which every fourth has a body that takes the line some time."""
    async with serving(folder, python=sys.executable) as picker:

        async def ask(number: int) -> int:
            async with asyncio.timeout(60):
                _, status = await picker.ask("x" * (20_000 if number % 4 == 0 else 10), f"r{number}")
            return status

        statuses = await asyncio.gather(*map(ask, range(count)))
        health, _ = await picker.health()
        stalls = sum((await picker.samples("endpick_loop_stalls_total")).values())
        return {"served": statuses.count(0), "health": health, "stalls": stalls}


def lost_packets() -> int:
    """What the queue of loopback has dropped."""
    (queue,) = json.loads(subprocess.run(["tc", "-s", "-j", "qdisc", "show", "dev", "lo"], capture_output=True, check=True).stdout)
    return int(queue["drops"])


if __name__ == "__main__":
    how = shaped()
    answer = asyncio.run(asked(Path(sys.argv[1]), int(sys.argv[2]))) if how else {}
    print(json.dumps({"how": how, **answer, "lost_packets": lost_packets() if how else 0}))
