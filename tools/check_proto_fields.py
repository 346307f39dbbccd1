"""Compare our ext_proc messages with the real ones of `xds-protos`, which lives in the venv that ENDPICK_XDS_VENV names.

There is nothing to generate: without `--check` it does nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEST = "tests/unit/extproc/test_proto.py"


def main() -> int:
    """Run the comparison, which is a test that is skipped elsewhere; the exit code is 1 where they differ, 2 without venv."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare")
    if not parser.parse_args().check:
        return 0
    venv = os.environ.get("ENDPICK_XDS_VENV")
    if venv is None or not (Path(venv) / "bin/python").exists():
        print("ENDPICK_XDS_VENV names no venv with xds-protos; make check installs one")
        return 2
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", TEST]
    return int(subprocess.run(command, cwd=ROOT, check=False).returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
