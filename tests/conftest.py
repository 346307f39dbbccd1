"""Real distributions for tests: written by hand where a fault needs it, built from the projects under `fixtures/plugins` otherwise."""

from __future__ import annotations

import base64
import gc
import hashlib
import itertools
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from forked import FORKED
from installing import only_one_at_a_time, pip_install, shared_directory
from offered_hooks import HOOK_OBJECTS

PROJECTS = Path(__file__).parent / "fixtures" / "plugins"
REPOSITORY = Path(__file__).parents[1]
SOURCES = (REPOSITORY / "core", REPOSITORY / "builtin_plugins" / "builtin", *sorted((REPOSITORY / "extras").iterdir()))
GROUP = "endpick.plugins.v1"

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
"""gRPC's fork handlers abort children of a process in which a channel is open; ours exec at once and need none."""

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
"""numpy's idle threads cost each of the processes that tests start a tenth of a second."""

settings.register_profile("quick", settings.default, max_examples=30, deadline=None, suppress_health_check=(HealthCheck.too_slow,))
settings.load_profile("quick")
"""Few examples, others in each run. The machine may be busy, so no example is too slow."""

settings.register_profile("fuzz", max_examples=500, deadline=None, suppress_health_check=tuple(HealthCheck))
"""For `make fuzz`, which repeats the targets of `tests/fuzz` with other examples."""

_SCORER = '''

class {name}(Scorer):
    """Every endpoint is equal."""

    def score(self, request, endpoints, state):
        return np.ones(len(endpoints))
'''


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """For `-n auto`: two more than processors, for tests wait half of the time, for processes that they have started and for timers."""
    return len(os.sched_getaffinity(0)) + 2


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Collect no garbage while collecting tests, and take what is there then out of every collection to come: the kit asks for hundreds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


_TESTS = itertools.count(1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Freeze, now and then, for what stays of tests, such as their reports."""
    yield
    if next(_TESTS) % 100 == 0:
        gc.collect()
        gc.freeze()


@dataclass(frozen=True)
class CliResult:
    """What one run of `endpick` gave."""

    exit_code: int
    stdout: str
    stderr: str


@pytest.fixture
def run_cli(tmp_path: Path) -> Callable[..., CliResult]:
    """`run_cli("validate", "config.yaml", path=[…])`: runs `endpick` in a process of its own, with these directories first on its path.

    A `python` of its own makes it a process that begins from nothing; see `forked`.
    """

    def run(
        *arguments: str | Path,
        path: Sequence[Path] = (),
        text: str | None = None,
        cwd: Path | None = None,
        python: Path | str = FORKED,
        environment: Mapping[str, str] | None = None,
    ) -> CliResult:
        search_path = os.pathsep.join(map(str, [*path, *SOURCES]))
        result = subprocess.run(
            [str(python), "-m", "endpick", *map(str, arguments)],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=cwd or tmp_path,
            env={**os.environ, "PYTHONPATH": search_path, "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})},
        )
        return CliResult(result.returncode, result.stdout, result.stderr)

    return run


@pytest.fixture
def make_distribution(tmp_path: Path) -> Callable[..., Path]:
    """`make_distribution("good-scorers", {"acme.latency": "good:Latency"})`: a directory with real metadata and a module of scorers."""

    def make(
        name: str,
        entry_points: Mapping[str, str] | None = None,
        *,
        version: str = "1.0",
        group: str = GROUP,
        modules: Mapping[str, str] | None = None,
        requires: Sequence[str] = (),
        root: Path | None = None,
        egg_info: bool = False,
    ) -> Path:
        directory = root or tmp_path / f"{name}-{version}"
        written = _scorer_modules(entry_points or {}) if modules is None else modules
        for module, source in written.items():
            file = directory / _file_of(module)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source)
        _write_metadata(directory, name, version, group, entry_points or {}, requires, modules=written, egg_info=egg_info)
        return directory

    return make


@pytest.fixture
def installed_hooks(fixture_project: Callable[[str], Path], make_distribution: Callable[..., Path]) -> Callable[..., list[Path]]:
    """`installed_hooks("hooks.first", …)`: directories in which the distribution `watchers` offers these objects of `hook-objects`."""

    def install(*names: str) -> list[Path]:
        entry_points = {name: HOOK_OBJECTS[name] for name in names}
        return [make_distribution("watchers", entry_points, group="endpick.hooks.v1", modules={}), fixture_project("hook-objects")]

    return install


def _scorer_modules(entry_points: Mapping[str, str]) -> dict[str, str]:
    modules: dict[str, str] = {}
    for target in entry_points.values():
        module, _, name = target.partition(":")
        head = modules.setdefault(module, "import numpy as np\n\nfrom endpick.api import Scorer\n")
        modules[module] = head + _SCORER.format(name=name)
    return modules


def _write_metadata(
    directory: Path,
    name: str,
    version: str,
    group: str,
    entry_points: Mapping[str, str],
    requires: Sequence[str],
    *,
    modules: Iterable[str],
    egg_info: bool,
) -> None:
    stem = name.replace("-", "_")
    info = directory / (f"{stem}.egg-info" if egg_info else f"{stem}-{version}.dist-info")
    info.mkdir(parents=True)
    header = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(f"Requires-Dist: {line}\n" for line in requires)
    (info / ("PKG-INFO" if egg_info else "METADATA")).write_text(f"{header}\n# {name}\n\nName: not-the-name\n")
    lines = [f"{plugin_type} = {target}" for plugin_type, target in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    if not egg_info:
        files = {*directory.glob("*.py"), *(directory / _file_of(module) for module in modules)}
        (info / "RECORD").write_text("".join(record_line(directory, file) for file in sorted(files)))


def _file_of(module: str) -> str:
    return f"{module.replace('.', '/')}.py"


def record_line(root: Path, file: Path) -> str:
    """The line about a file in the RECORD of a distribution that is installed in `root`."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).rstrip(b"=").decode()
    return f"{file.relative_to(root)},sha256={digest},{file.stat().st_size}\n"


@pytest.fixture(scope="session")
def fixture_project(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`fixture_project("good-scorers")`: a directory into which the wheel of that project was installed; built once per test run."""
    base = shared_directory(tmp_path_factory, "distributions") / "projects"

    def install(name: str) -> Path:
        directory = base / name
        with only_one_at_a_time(base, name):
            if not directory.exists():
                with zipfile.ZipFile(_build_wheel(name, base / "wheels")) as wheel:
                    wheel.extractall(directory)
        return directory

    return install


@pytest.fixture(scope="session")
def plugin_venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a venv into which pip has installed endpick's sources, acme-thermal and good-scorers; made once per test run.

    What endpick depends on is borrowed from the environment that runs the tests, because tests have no network.
    """
    base = shared_directory(tmp_path_factory, "distributions")
    directory = base / "venv"
    python = directory / "bin" / "python"
    with only_one_at_a_time(base, "venv"):
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True, capture_output=True)
            site = next((directory / "lib").glob("python3*")) / "site-packages"
            borrowed = [path for path in sys.path if path.endswith("site-packages")]
            (site / "borrowed.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in borrowed))
            pip_install(python, PROJECTS / "acme-thermal", PROJECTS / "good-scorers")
    return python


def _build_wheel(name: str, target: Path) -> str:
    """Build a project's wheel with its own build backend, from a directory that stays as it is."""
    from hatchling.builders.wheel import WheelBuilder

    return next(WheelBuilder(str(PROJECTS / name)).build(directory=str(target / name), versions=["standard"]))
