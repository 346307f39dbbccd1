"""Installs what llm-d's latency predictor needs: `python tests/real/install_predictor.py VENV SOURCES`, with a copy of its repository.

Without SOURCES there is nothing to do. What went wrong is left in VENV/reason.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

LONGEST_SECONDS = 900


def main(folder: str, sources: str) -> None:
    if not sources or not (Path(sources) / "requirements.txt").exists():
        print("LATENCY_PREDICTOR names no copy of llm-d's latency predictor: its tests will be skipped")
        return
    environment = Path(folder).absolute()
    python, done = environment / "bin" / "python", environment / "installed"
    if done.exists():
        return
    try:
        venv.create(environment, with_pip=True)
        requirements = ("-r", str(Path(sources) / "requirements.txt"))
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
        subprocess.run(command, check=True, timeout=LONGEST_SECONDS)
        done.touch()
    except (OSError, subprocess.SubprocessError) as problem:
        (environment / "reason").write_text(f"{problem}\n")
        raise SystemExit(f"the predictor cannot be installed in {environment}: {problem}") from problem


if __name__ == "__main__":
    main(*sys.argv[1:3])
