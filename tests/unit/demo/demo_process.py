"""The demo as a process of its own, so that a test can interrupt it: arguments are Envoy's binary, the picker, and the duration."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from endpick.cli.demo import run_until_done_or_interrupted
from endpick.demo.runner import DemoSettings

if __name__ == "__main__":
    envoy, picker, duration = sys.argv[1:]
    settings = DemoSettings(Path(envoy), float(duration), picker=(sys.executable, picker))
    sys.exit(asyncio.run(run_until_done_or_interrupted(settings)))
