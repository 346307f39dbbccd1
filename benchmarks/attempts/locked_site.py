"""An environment with a locked plugin, in which something is planted that must not run, and the `endpick serve --locked` that meets it."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.attempts.catalogue import Target
from benchmarks.attempts.gateway import HELLO, answered, connected, data, opened, request

_OPTIONS = ("--host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0", "--secure-serving=false", "--log-format=json")
_MOST_MORE_SECONDS = 60.0
"""Beyond the time of an attempt, on a machine that has other work."""
_CONFIG = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- type: acme.even
- type: max-score-picker
schedulingProfiles:
- {name: default, plugins: [{pluginRef: acme.even}, {pluginRef: max-score-picker}]}
dataLayer: {discovery: {pluginRef: file-discovery}}
"""
_ACTS = '''\
import concurrent.futures, importlib, importlib.util, pkgutil, runpy, sys
from pathlib import Path


def told(name):
    """What an act came to, as text."""
    try:
        return f"done: {ACTS[name]()}"
    except ImportError as problem:
        return f"refused: {problem}"


def lazily(name):
    spec = importlib.util.find_spec(name)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.VALUE


def elsewhere(name):
    import parts
    parts.__path__ = [*parts.__path__, "elsewhere"]
    parts.__path__ = pkgutil.extend_path(parts.__path__, "parts")
    return importlib.import_module(name)


def at_once(name):
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        return [each.result() for each in [threads.submit(importlib.import_module, name) for _ in range(8)]]


ACTS = {
    "import": lambda: importlib.import_module("parts.late"),
    "relative": lambda: importlib.import_module(".late", "parts"),
    "attribute": lambda: importlib.import_module("parts").late,
    "reload": lambda: importlib.reload(importlib.import_module("parts.scorer")),
    "program": lambda: runpy.run_module("parts.late"),
    "lazy": lambda: lazily("parts.late"),
    "unlisted": lambda: importlib.import_module("parts.extra"),
    "elsewhere": lambda: elsewhere("parts.extra"),
    "at once": lambda: at_once("parts.late"),
    "again": lambda: sys.modules.pop("parts.late", None) or importlib.import_module("parts.late"),
}
'''
_PACKAGE = {
    "parts/__init__.py": "from parts.scorer import Even\n\n\ndef __getattr__(name):\n    import importlib\n\n"
    "    if name == 'late':\n        return importlib.import_module('parts.late')\n    raise AttributeError(name)\n",
    "parts/scorer.py": '''\
from pathlib import Path

import numpy as np

from endpick.api import Scorer
from parts import acts

try:
    import parts.speedups
except ImportError:
    pass


class Even(Scorer):
    """Every endpoint is equal."""

    def score(self, request, endpoints, state):
        if Path("act").exists():
            Path("came").write_text(acts.told(Path("act").read_text()))
        return np.ones(len(endpoints))
''',
    "parts/acts.py": _ACTS,
    "parts/late.py": "VALUE = 1\n",
}


@dataclass
class Site:
    """One environment: what is installed, where endpick runs, and the mark that foreign code leaves."""

    root: Path
    locked: bool = True
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def packages(self) -> Path:
        return next((self.root / "env" / "lib").iterdir()) / "site-packages"

    @property
    def python(self) -> Path:
        return self.root / "env" / "bin" / "python"

    @property
    def folder(self) -> Path:
        return self.root / "work"

    @property
    def mark(self) -> Path:
        return self.root / "mark"

    @property
    def shadow(self) -> Path:
        """A folder that comes before everything installed, by PYTHONPATH."""
        place = self.root / "shadow"
        place.mkdir(exist_ok=True)
        self.environment["PYTHONPATH"] = str(place)
        return place

    @property
    def information(self) -> Path:
        return self.packages / "acme_parts-1.0.dist-info"

    def evil(self, more: str = "") -> str:
        """Source that must not run; it is a plugin as well, so that what runs it goes on."""
        plugin = _PACKAGE["parts/scorer.py"].replace("from parts import acts", "acts = None")
        return f"open({str(self.mark)!r}, 'w').close()\n{plugin}\n{more}\n"

    def write(self, place: Path, text: str | bytes | None = None) -> Path:
        """A file, with the evil source unless given."""
        place.parent.mkdir(parents=True, exist_ok=True)
        content = self.evil() if text is None else text
        place.write_bytes(content.encode() if isinstance(content, str) else content)
        return place

    def first(self, code: str) -> None:
        """Have Python run a line when it starts, before endpick."""
        self.write(self.packages / "a_first.py", f"EVIL = {self.evil()!r}\nMARK = {str(self.mark)!r}\n{code}\n")
        self.write(self.packages / "a_first.pth", "import a_first\n")

    def endpick(self, *arguments: str) -> list[str]:
        return [str(self.python), str(self.root / "env" / "bin" / "endpick"), *arguments]

    def surroundings(self) -> dict[str, str]:
        return {**{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}, **self.environment}


Act = Callable[[Mapping[str, object]], Awaitable[object]]
"""What is done once it serves: it is told the line of the log that says so, and the process id."""
Way = Callable[[Site], object]
"""Plants something that must not run before the start; its name says what."""


def install(root: Path, name: str, entry_points: Mapping[str, str], modules: Mapping[str, str], version: str = "1.0") -> Path:
    """Install a distribution as a wheel is installed; its metadata directory."""
    information = root / f"{name.replace('-', '_')}-{version}.dist-info"
    points = "".join(f"{type_} = {target}\n" for type_, target in entry_points.items())
    files = {
        **{root / path: text for path, text in modules.items()},
        information / "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        information / "entry_points.txt": f"[endpick.plugins.v1]\n{points}",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (information / "RECORD").write_text("".join(row(root, path) for path in files))
    return information


def row(root: Path, file: Path) -> str:
    """The line of RECORD about a file."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).rstrip(b"=").decode()
    return f"{file.relative_to(root)},sha256={digest},{file.stat().st_size}\n"


@functools.cache
def _template(python: str) -> tuple[tempfile.TemporaryDirectory[str], Path]:
    """An environment with what the interpreter of the picker has, and with a locked plugin."""
    told = subprocess.run(
        [python, "-IPc", "import sys; print(sys._base_executable, *sys.path, sep='\\n')"], capture_output=True, text=True, check=True
    )
    base, *paths = told.stdout.splitlines()
    library = next(Path(path) for path in paths if path.endswith("lib-dynload")).parent
    held = tempfile.TemporaryDirectory()
    root = Path(held.name)
    packages = root / "env" / "lib" / library.name / "site-packages"
    packages.mkdir(parents=True)
    (root / "env" / "bin").mkdir()
    (root / "env" / "bin" / "python").symlink_to(base)
    (root / "env" / "bin" / "endpick").write_text("from endpick.cli.process import main\nmain()\n")
    (root / "env" / "pyvenv.cfg").write_text(f"home = {Path(base).parent}\ninclude-system-site-packages = false\n")
    borrowed = [path for path in paths if not Path(path).is_relative_to(library) and not path.endswith(".zip")]
    borrowed += [path for path in paths if path.endswith("site-packages") and path not in borrowed]
    (packages / "borrowed.pth").write_text("".join(f"{path}\n" for path in borrowed))
    install(packages, "acme-parts", {"acme.even": "parts:Even"}, _PACKAGE)
    site = Site(root)
    site.folder.mkdir()
    (site.folder / "config.yaml").write_text(_CONFIG)
    lock(site)
    return held, root


def lock(site: Site) -> None:
    """Pin what is installed."""
    made = subprocess.run(site.endpick("lock"), cwd=site.folder, env=site.surroundings(), capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr


def python_of(target: Target) -> str:
    """The interpreter that the picker runs in."""
    return Path(f"/proc/{target.pid}/cmdline").read_bytes().split(b"\0")[0].decode()


def site_of(target: Target, locked: bool = True) -> Site:
    """A fresh copy of the environment, beside the picker."""
    root = Path(tempfile.mkdtemp(dir=target.folder, prefix="site-"))
    shutil.copytree(_template(python_of(target))[1], root, symlinks=True, dirs_exist_ok=True)
    site = Site(root, locked)
    endpoint = {"name": "a", "address": "127.0.100.1", "port": str(target.model_server_port)}
    (site.folder / "endpoints.yaml").write_text(json.dumps({"endpoints": [endpoint]}))
    return site


async def served(site: Site, act: Act | None = None) -> tuple[int | None, str]:
    """Serve until it would serve requests, do what is to be done then, and end it; exit code, None if it had to be killed, and its log."""
    log = site.root / "log"
    command = site.endpick("serve", "config.yaml", *_OPTIONS, "--drain-timeout=0s", *(["--locked"] if site.locked else []))
    with log.open("w") as written:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=site.folder, env=site.surroundings(), stdin=asyncio.subprocess.DEVNULL, stdout=written, stderr=written
        )
    try:
        async with asyncio.timeout(40):
            while process.returncode is None and '"event":"serving"' not in log.read_text(errors="replace"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            if process.returncode is None and act is not None:
                [line] = [line for line in log.read_text(errors="replace").splitlines() if '"event":"serving"' in line]
                await act({**json.loads(line), "pid": process.pid})
            if process.returncode is None:
                process.terminate()
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
            process_code = None
        else:
            process_code = process.returncode
    return process_code, log.read_text(errors="replace")


async def asked(site: Site, port: object, act: str) -> str:
    """What the plugin came to, when a request had it do something late."""
    came = site.folder / "came"
    came.unlink(missing_ok=True)
    (site.folder / "act").write_text(act)
    assert isinstance(port, int)
    async with connected(port) as (reader, writer):
        writer.write(HELLO + opened(1) + data(1, request(b'{"model":"m","prompt":"p"}')))
        for _ in range(100):
            if came.exists() and came.read_text():
                break
            await answered(reader, 0.05)
    (site.folder / "act").unlink()
    return came.read_text() if came.exists() else ""


async def tried(target: Target, ways: Iterable[Way], locked: bool = True) -> list[str]:
    """Meet each way with an `endpick serve --locked` of its own: a sentence for each whose code ran, or that ended in disorder."""
    found: list[str] = []
    ways = [*ways]
    for way in target.rng.sample(ways, len(ways)):
        if time.monotonic() > target.until + _MOST_MORE_SECONDS:
            break  # another run has them in another order
        site = site_of(target, locked)
        with suppress(TimeoutError):
            way(site)
            code, log = await served(site)
            found += judged(site, way.__name__.replace("_", " "), code, log)
        shutil.rmtree(site.root, ignore_errors=True)
    return found


def judged(site: Site, name: str, code: int | None, log: str) -> list[str]:
    """What is wrong with how a start went."""
    found = [f"{name}: foreign code ran in spite of the lock"] if site.mark.exists() else []
    if code not in (0, 4) or "Traceback" in log:
        found.append(f"{name}: it ended with {code}: {log[-300:]}")
    return found
