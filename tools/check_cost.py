"""Check that a request makes no more Python calls than `benchmarks/calls.json` allows it; with `--write`, record what it makes.

Calls are counted, not seconds: they are the same on a busy machine, and a feature that costs every request some shows at once. Whoever adds
calls on purpose records the new count, and the change is seen in review.

Counted are functions in the files of endpick and of its built-in plugins, and those that `dataclass` writes, which have no file. What the
benchmark calls of its own is not, nor are the functions of other packages.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks/calls.json"
PYTHON = "3.11"
"""Other versions count otherwise: 3.12 makes no call for a comprehension."""
CONVERSATIONS = ("1 KB", "1 KB + 80 chunks", "16 KB", "220 KB")
REQUESTS = 40
MARGIN = 0.01

sys.path.insert(0, str(ROOT))

from benchmarks.extproc.messages import conversations  # noqa: E402
from benchmarks.extproc.phased import phases  # noqa: E402
from benchmarks.request import Rounds, planned_sessions  # noqa: E402

import endpick  # noqa: E402
import endpick_builtin  # noqa: E402

_COUNTED = (str(Path(endpick.__file__).parent), str(Path(endpick_builtin.__file__).parent), "<string>")
"""How the names of files begin whose functions are counted; the last is the one of functions that are written when a module is imported."""


class Calls:
    """Counts the functions of endpick that are entered."""

    def __init__(self) -> None:
        self.count = 0

    def profile(self, frame: FrameType, event: str, _argument: object) -> None:
        """For `sys.setprofile`."""
        if event == "call" and frame.f_code.co_filename.startswith(_COUNTED):
            self.count += 1


def calls_per_request(name: str) -> float:
    """Python calls of one request with llm-d's default profile and 16 endpoints, through everything but the socket."""
    [conversation] = [each for each in conversations() if each.name == name]
    rounds = Rounds(asyncio.run(planned_sessions(16)), phases(conversation, "plan"))
    rounds.run(REQUESTS)
    calls = Calls()
    sys.setprofile(calls.profile)
    try:
        rounds.run(REQUESTS)
    finally:
        sys.setprofile(None)
    return calls.count / REQUESTS


def main() -> int:
    """Run the check; the exit code is 1 when a request makes more calls than are recorded, or clearly fewer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="record instead of checking")
    write = parser.parse_args().write
    if platform.python_version_tuple()[:2] != tuple(PYTHON.split(".")):
        print(f"calls of a request are counted with Python {PYTHON} only")
        return 0
    made = {name: calls_per_request(name) for name in CONVERSATIONS}
    if write:
        RECORD.write_text(json.dumps(made, indent=2) + "\n")
        return 0
    recorded = json.loads(RECORD.read_text())
    wrong = [name for name in CONVERSATIONS if abs(made[name] - recorded.get(name, 0)) > MARGIN * made[name]]
    for name in CONVERSATIONS:
        print(f"{'WRONG' if name in wrong else 'right'}  {made[name]:6.1f} calls a request, recorded {recorded.get(name, 0):6.1f}  {name}")
    if wrong:
        print("if the cost is meant, record it: python tools/check_cost.py --write")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
