"""What the code of a plugin or a hook object may raise without harm to the process.

Every layer that calls plugins asks here, from the data layer to the reload, so that all of them mean the same.
"""

from __future__ import annotations

import asyncio

PLUGIN_FAILURES = (Exception, SystemExit)
"""What a plugin may throw at the host: `sys.exit()` in a collector must not end the gateway's picker."""


def was_cancelled() -> bool:
    """Whether the running task was asked to end; False when a `CancelledError` came out of a plugin instead."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
