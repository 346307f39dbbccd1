"""Check that every generated file in the repository is fresh; with `--write`, generate them all."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
GENERATORS = ("generate_proto.py", "check_proto_fields.py", "generate_schemas.py", "generate_docs.py", "generate_dashboard.py")
"""Each takes `--check`; run in this order. One that is not there generates nothing."""


def main() -> int:
    """Run every generator; the exit code is 1 when one of them found something stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="generate instead of checking")
    arguments = parser.parse_args()
    mode = [] if arguments.write else ["--check"]
    present = [name for name in GENERATORS if (TOOLS / name).exists()]
    statuses = {name: subprocess.run([sys.executable, TOOLS / name, *mode], check=False).returncode for name in present}
    for name, status in statuses.items():
        print(f"{'fresh' if status == 0 else 'STALE'}  {name}")
    return int(any(statuses.values()))


if __name__ == "__main__":
    sys.exit(main())
