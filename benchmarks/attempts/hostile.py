"""Makes one attempt again and again until its time is up, in a process of its own.

python -m benchmarks.attempts.hostile MODULE NAME TARGET, where TARGET is the `Target` as JSON, with `seconds` and a `seed`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import resource
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from benchmarks.attempts.catalogue import Attempt, Target

CLASSES = (
    *("bodies", "bodies_by_chance", "answers", "overload", "overload_replies", "pages", "pages_twins", "pages_wide"),
    *("kept", "kept_caches", "together", "queues"),
    *("plugins", "plugins_combined", "plugins_apart"),
    *("servers", "servers_tls", "servers_kubernetes", "servers_kubernetes_tls", "servers_discovery"),
    *("servers_endpoints", "servers_layouts", "servers_services"),
    *("connections", "connections_frames", "connections_grpc", "connections_tls", "connections_windows", "connections_watches"),
    *("trust", "trust_files", "trust_late", "trust_places", "trust_made_up"),
    *("logs", "logs_gateways", "logs_surroundings", "logs_rates", "logs_long"),
    *("restarts", "restarts_reloads", "surroundings", "surroundings_later"),
)
_PAUSE_SECONDS = 0.1


def attempts_of(module: str) -> tuple[Attempt, ...]:
    """Those of a class, in the order in which its module names them."""
    found: tuple[Attempt, ...] = import_module(module).ATTEMPTS
    return found


async def persist(attempt: Attempt, target: Target) -> dict[str, object]:
    """Make it until the time is up: how often it was made, and what it found."""
    made, found = 0, dict[str, None]()
    while not made or target.seconds_left() > 1:
        # The server defends itself: it hangs up, or it refuses.
        with suppress(OSError, EOFError, TimeoutError):
            found |= dict.fromkeys(await attempt.run(target) or ())
        made += 1
        await asyncio.sleep(_PAUSE_SECONDS)
    return {"made": made, "found": [*found]}


def main() -> int:
    """Print what came of it, as JSON."""
    module, name, told = sys.argv[1:]
    values = json.loads(told)
    seconds, rng = values.pop("seconds"), random.Random(values.pop("seed"))
    target = Target(**{**values, "folder": Path(values["folder"])}, until=time.monotonic() + seconds, rng=rng)
    [attempt] = [each for each in attempts_of(module) if each.name == name]
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # it warns of each write to a server that has hung up
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(json.dumps(asyncio.run(persist(attempt, target))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
