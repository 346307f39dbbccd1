"""Change the code in small ways and count which changes the tests notice: `python tools/mutants.py config --sample 400`."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from pathlib import Path

from mutmut.mutation.file_mutation import mutate_file_contents
from mutmut.utils.format_utils import get_mutant_name

REPOSITORY = Path(__file__).resolve().parents[1]
WORKSPACES = REPOSITORY / "build" / "mutants"
VISIBLE = ("builtin_plugins", "docs", "examples", "plugin_template", "schemas", "tests")
"""What tests read, besides the code that is changed. The code itself is called `src`, the one prefix that mutmut takes off module names."""

SLOW_TESTS = (
    "tests/unit/config/test_config_bounds.py::test_a_file_just_under_the_limit_is_answered",
    "tests/unit/config/test_config_bounds.py::test_behaviour_36_an_alias_bomb_is_refused",
)
"""They guard against slowness, take seconds each, and nearly every mutant of `config` would run them."""

PACKAGES = ("diagnostics", "config", "plugins")
NOTICED, UNNOTICED, NEVER_RUN = 1, 0, 33
STOPPED = (-24, 24, 152)
"""mutmut's signal for a mutant that takes many times longer than the tests do without it."""
Z_95 = 1.96


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants of one package and say which of them no test noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", choices=PACKAGES)
    parser.add_argument("--sample", type=int, help="so many mutants, drawn at random, instead of all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=(), help="these mutants, by name")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args(arguments)
    workspace = prepare(options.package)
    os.chdir(workspace)  # mutmut looks for its settings where it is
    everything = mutants_of(options.package)
    chosen = tuple(options.only) or sample(everything, options.sample, options.seed)
    if run(workspace, chosen, options.workers) != 0:
        return 1
    results = {name: code for name, code in recorded(workspace).items() if name in set(chosen)}
    population = len(results) if options.only else len(everything)
    print(report(options.package, results, population))
    return 0


def prepare(package: str) -> Path:
    """A fresh directory in which mutmut finds the code under a name that it understands, and the tests of the package."""
    workspace = WORKSPACES / package
    shutil.rmtree(workspace, ignore_errors=True)
    workspace.mkdir(parents=True)
    (workspace / "src").symlink_to(REPOSITORY / "core")
    (workspace / "hide_mutmut.py").symlink_to(REPOSITORY / "tools" / "hide_mutmut.py")
    for directory in VISIBLE:
        (workspace / directory).symlink_to(REPOSITORY / directory)
    settings = {
        "source_paths": ["src"],
        "only_mutate": [f"src/endpick/{package}/*"],
        "also_copy": ["hide_mutmut.py", *VISIBLE],
        "pytest_add_cli_args": [
            "-n0",
            "--hypothesis-profile=mutants",
            "-p",
            "no:cacheprovider",
            "-p",
            "hide_mutmut",
            *(f"--deselect={test}" for test in SLOW_TESTS),
        ],
        "pytest_add_cli_args_test_selection": [f"tests/unit/{package}"],
        "process_isolation": "forkserver",
        "use_git_change_detection": False,
    }
    table = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
    (workspace / "pyproject.toml").write_text(f"{(REPOSITORY / 'pyproject.toml').read_text()}\n[tool.mutmut]\n{table}")
    return workspace


def mutants_of(package: str) -> tuple[str, ...]:
    """The names of all mutants of a package, in the order of the code."""
    return tuple(name for file in sorted((REPOSITORY / "core" / "endpick" / package).rglob("*.py")) for name in mutants_in(file))


def mutants_in(file: Path) -> tuple[str, ...]:
    """The names of all mutants of one module, as mutmut gives them."""
    mutated = mutate_file_contents(str(file), file.read_text())
    return tuple(get_mutant_name(file.relative_to(REPOSITORY / "core"), name) for name in mutated.mutant_names)


def sample(names: Sequence[str], size: int | None, seed: int) -> tuple[str, ...]:
    """As many names as wanted, the same for the same seed."""
    return tuple(names) if size is None or size >= len(names) else tuple(sorted(random.Random(seed).sample(names, size)))


def run(workspace: Path, names: Iterable[str], workers: int) -> int:
    """Let mutmut try these mutants."""
    test_data = os.environ.get("ENDPICK_TEST_DATA", str(REPOSITORY.parent / "shared" / "data"))
    command = [str(Path(sys.executable).with_name("mutmut")), "run", "--max-children", str(workers), *names]
    with (workspace / "log").open("w") as log:
        environment = {**os.environ, "ENDPICK_TEST_DATA": test_data}
        code = subprocess.run(command, cwd=workspace, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
    if code != 0:
        print(f"mutmut gave up; see {log.name}", file=sys.stderr)
    return code


def recorded(workspace: Path) -> Mapping[str, int | None]:
    """The exit code of pytest for each mutant, as mutmut stores it."""
    found: dict[str, int | None] = {}
    for file in (workspace / "mutants").rglob("*.meta"):
        found |= json.loads(file.read_text())["exit_code_by_key"]
    return found


def report(package: str, results: Mapping[str, int | None], population: int) -> str:
    """The score, for a sample with its 95 % interval, then every mutant that was not killed."""
    kinds = Counter(map(kind_of, results.values()))
    killed, judged = kinds["killed"] + kinds["too slow"], len(results) - kinds["broken run"]
    low, high = wilson(killed, judged)
    interval = "" if len(results) == population else f" ({low:.1%} to {high:.1%} of all {population})"
    head = f"{package}: {killed} of {judged} killed, {killed / judged:.1%}{interval}; {dict(kinds)}"
    rest = sorted(f"  {kind_of(code)}: {name}" for name, code in results.items() if kind_of(code) != "killed")
    return "\n".join([head, *rest])


def kind_of(code: int | None) -> str:
    """What an exit code means. pytest's own troubles are no kill: they say nothing about the tests."""
    if code == NOTICED:
        return "killed"
    if code in STOPPED:
        return "too slow"
    return {UNNOTICED: "survived", NEVER_RUN: "never run"}.get(code if code is not None else -1, "broken run")


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    share, spread = hits / trials, Z_95**2 / trials
    middle, half = share + spread / 2, Z_95 * sqrt(share * (1 - share) / trials + spread / (4 * trials))
    return (middle - half) / (1 + spread), (middle + half) / (1 + spread)


if __name__ == "__main__":
    sys.exit(main())
