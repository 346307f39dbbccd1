"""Makes one attempt again and again until its time is up, in a process of its own.

python -m benchmarks.attempts.hostile CLASS NAME TARGET, where TARGET is the `Target` as JSON.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from benchmarks.attempts.catalogue import Attempt, Target

CLASSES = ("bodies", "answers", "overload", "pages", "plugins", "servers", "connections", "trust", "logs", "restarts")
_PAUSE_SECONDS = 0.1


def attempts_of(name: str) -> tuple[Attempt, ...]:
    """Those of a class, in the order in which its module names them."""
    found: tuple[Attempt, ...] = import_module(f"benchmarks.attempts.{name}").ATTEMPTS
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
    of, name, told = sys.argv[1:]
    values = json.loads(told)
    seconds = values.pop("seconds")
    target = Target(**{**values, "folder": Path(values["folder"])}, until=time.monotonic() + seconds)
    [attempt] = [each for each in attempts_of(of) if each.name == name]
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(json.dumps(asyncio.run(persist(attempt, target))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
