"""Build what a release publishes into `dist` and try it in bare environments: `make release-check`.

Each wheel comes from its sdist and must hold the same files as one built from this checkout. For each Python a compiled wheel is built from
the sdist, too, then installed with Envoy, endpick's other distributions and an example plugin, and nothing that this checkout has.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

from make_wheels import MINOR_VERSIONS, ROOT, build, usable_pythons

PROJECTS = (ROOT, ROOT / "builtin_plugins" / "kubernetes", ROOT / "builtin_plugins" / "kv_events")
EXAMPLE = ROOT / "examples" / "plugins" / "acme-cost"
TRIED = (("doctor", "--strict", "--load"), ("demo", "--duration", "6"), ("test", "--dist", "acme-cost"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, compare, install and try; 1 when there is no Python to build for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", help="the interpreters to build for")
    parser.add_argument("--folder", type=Path, default=ROOT / "dist", help="where the files go (dist); emptied first")
    options = parser.parse_args(arguments)
    folder, pythons = options.folder.absolute(), options.pythons or list(usable_pythons())
    shutil.rmtree(folder, ignore_errors=True)
    for project in PROJECTS:
        for file in build_and_compare(project, folder):
            print(f"{file.name}: {file.stat().st_size / 1e3:.0f} kB", flush=True)
    (sdist,) = folder.glob("endpick-*.tar.gz")
    others = [wheel for wheel in folder.glob("*.whl") if not wheel.name.startswith("endpick-")]
    for python in pythons:
        begin = time.monotonic()
        wheel = build(python, folder, sdist)
        built = time.monotonic()
        install_and_try(python, wheel, others)
        print(f"{wheel.name}: built in {built - begin:.0f} s, works ({time.monotonic() - built:.0f} s)", flush=True)
    print(f"{len(pythons)} Pythons tried; endpick supports {len(MINOR_VERSIONS)}")
    return 0 if pythons else 1


def build_and_compare(project: Path, folder: Path) -> list[Path]:
    """A project's sdist and the wheel from it, in the folder. Exits unless this checkout gives the same wheel."""
    before = set(folder.glob("*"))
    command = [sys.executable, "-m", "build", "--no-isolation"]
    subprocess.run([*command, "--outdir", folder, project], stdout=subprocess.DEVNULL, check=True)
    new = sorted(set(folder.glob("*")) - before)
    (wheel,) = (file for file in new if file.suffix == ".whl")
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([*command, "--wheel", "--outdir", work, project], stdout=subprocess.DEVNULL, check=True)
        from_sdist, from_tree = contents(wheel), contents(Path(work, wheel.name))
    if different := sorted(name for name in from_sdist | from_tree if from_sdist.get(name) != from_tree.get(name)):
        raise SystemExit(f"the sdist and this checkout give different wheels: {', '.join(different)}")
    return new


def contents(wheel: Path) -> dict[str, bytes]:
    """The files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def install_and_try(python: str, wheel: Path, others: Sequence[Path]) -> None:
    """Install as a user would, without constraints, and run each of TRIED. Exits if one fails."""
    with tempfile.TemporaryDirectory() as work:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("ENDPICK_", "PYTHON", "VIRTUAL_ENV"))}
        program = Path(work, "venv", "bin", "endpick")

        def run(*command: str | Path) -> str:
            done = subprocess.run(
                command, cwd=work, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
            )
            if done.returncode:
                raise SystemExit(f"{' '.join(map(str, command))} failed with {done.returncode}:\n{done.stdout}")
            return done.stdout

        run(python, "-m", "venv", "venv")
        run(program.with_name("pip"), "install", "--quiet", f"{wheel}[gateway]", *others, EXAMPLE)
        outputs = [run(program, *words) for words in TRIED]
        if "request path compiled" not in outputs[0]:
            raise SystemExit(f"{wheel.name} is not compiled:\n{outputs[0]}")


if __name__ == "__main__":
    sys.exit(main())
