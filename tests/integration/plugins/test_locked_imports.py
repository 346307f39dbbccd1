"""`endpick serve --locked` in environments where Python would import another file than the one that was locked."""

from __future__ import annotations

import importlib.util
import json
import os
import py_compile
import shutil
import signal
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import SOURCES, record_line
from installing import make_venv, site_packages

pytestmark = pytest.mark.long

OPTIONS = ("--host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0", "--secure-serving=false", "--log-format=json")
TAIL = "dataLayer:\n  discovery: {pluginRef: file-discovery}\n"
EVIL = "from pathlib import Path\nPath({mark!r}).touch()\n"
PACKAGE = {
    "parts.__init__": "from parts.scorer import Even\n",
    "parts.scorer": """
import numpy as np

from endpick.api import Scorer


class Even(Scorer):
    \"\"\"Every endpoint is equal.\"\"\"

    def score(self, request, endpoints, state):
        return np.ones(len(endpoints))
""",
}


@dataclass(frozen=True)
class Site:
    """A virtual environment with one plugin distribution, a folder with configuration and lock, and a mark that foreign code leaves."""

    python: Path
    packages: Path
    folder: Path
    mark: Path

    @property
    def evil(self) -> str:
        """The source of a module that must not run."""
        return EVIL.format(mark=str(self.mark))

    def endpick(self, *arguments: str, search_path: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run `python -m endpick`; a serving process is stopped as soon as it serves."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"NO_COLOR": "1"} | ({} if search_path is None else {"PYTHONPATH": search_path})
        command = [str(self.python), "-m", "endpick", *arguments]
        with subprocess.Popen(command, cwd=self.folder, env=environment, stdout=-1, stderr=-1, text=True) as process:
            lines = []
            for line in process.stderr:
                lines.append(line)
                if '"event":"serving"' in line:
                    process.send_signal(signal.SIGTERM)
            output = process.stdout.read()
        return subprocess.CompletedProcess(command, process.returncode, output, "".join(lines))

    def serve(self, search_path: str | None = None) -> subprocess.CompletedProcess[str]:
        """Serve with the lock."""
        return self.endpick("serve", "config.yaml", *OPTIONS, "--locked", search_path=search_path)

    def refused(self, *sayings: object, search_path: str | None = None) -> None:
        """`serve --locked` and `lock --check` both refuse, say these things, and no foreign code runs."""
        served, checked = self.serve(search_path), self.endpick("lock", "--check", search_path=search_path)
        for result in (served, checked):
            assert result.returncode == 4, result.stderr
            assert "error[E0308]" in result.stderr
            for saying in sayings:
                assert str(saying) in result.stderr
        assert not self.mark.exists()


@pytest.fixture
def site(tmp_path, make_distribution):
    python = make_venv(tmp_path / "venv", [*SOURCES, *map(Path, _borrowed())])
    packages = site_packages(tmp_path / "venv")
    make_distribution("acme-parts", {"acme.even": "parts:Even"}, modules=PACKAGE, root=packages)
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "endpoints.yaml").write_text('{"endpoints": [{"name": "a", "address": "127.0.0.1", "port": "9"}]}')
    (folder / "config.yaml").write_text(
        "apiVersion: endpick/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n"
        "  - type: file-discovery\n    parameters: {path: endpoints.yaml}\n  - type: acme.even\n" + TAIL
    )
    made = Site(python, packages, folder, tmp_path / "mark")
    assert made.endpick("lock").returncode == 0
    return made


def _borrowed() -> list[str]:
    import sys

    return [path for path in sys.path if path.endswith("site-packages")]


def test_what_was_locked_serves_and_leaves_no_byte_code_of_its_own(site):
    served = site.serve()

    assert served.returncode == 0, served.stderr
    assert '"event":"serving"' in served.stderr
    assert list((site.packages / "parts").rglob("*.pyc")) == [], "byte code that would be trusted by others is not written either"


def test_a_package_that_shadows_a_locked_one_on_pythonpath_is_refused(site, tmp_path):
    shadow = tmp_path / "shadow" / "parts" / "__init__.py"
    shadow.parent.mkdir(parents=True)
    shadow.write_text(site.evil)

    site.refused(shadow, site.packages / "parts" / "__init__.py", search_path=str(tmp_path / "shadow"))


def test_a_module_that_shadows_a_locked_one_through_a_pth_file_is_refused(site, tmp_path):
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "parts.py").write_text(site.evil)
    (site.packages / "first.pth").write_text(f"import sys; sys.path.insert(0, {str(tmp_path / 'hidden')!r})\n")

    site.refused(tmp_path / "hidden" / "parts.py", site.packages / "parts" / "__init__.py")


def test_a_module_that_a_pth_file_makes_up_is_refused(site):
    (site.packages / "first.pth").write_text("import sys, types; sys.modules['parts'] = types.ModuleType('parts')\n")

    served = site.serve()

    assert served.returncode == 4
    assert "its module 'parts' was imported from memory before endpick could look at it" in served.stderr


def test_a_module_that_a_pth_file_makes_up_in_the_place_of_one_that_nothing_uses_is_refused(site, make_distribution):
    """Whatever imports it would get that one."""
    make_distribution("acme-unused", {"acme.unused": "unused:Unused"}, modules={"unused": "VALUE = 1\n"}, root=site.packages)
    assert site.endpick("lock").returncode == 0
    assert site.serve().returncode == 0
    (site.packages / "first.pth").write_text("import sys, types; sys.modules['unused'] = types.ModuleType('unused')\n")

    served = site.serve()

    assert served.returncode == 4
    assert "its module 'unused' was imported from memory before endpick could look at it" in served.stderr


def test_a_distribution_of_endpicks_name_and_place_makes_it_unsure_which_one_is_meant(site):
    shutil.copytree(_endpick_metadata(), site.packages / "endpick-9.9.dist-info")

    served = site.endpick("serve", "config.yaml", *OPTIONS)

    assert served.returncode == 4, served.stderr
    assert "error[E0323]: 'endpick' is the name of more than one installed distribution" in served.stderr
    assert f"{site.packages}/endpick-9.9.dist-info" in served.stderr


def _endpick_metadata() -> Path:
    from importlib.metadata import distribution

    return Path(str(distribution("endpick")._path))  # type: ignore[attr-defined]


def test_the_working_directory_is_not_searched(site):
    (site.folder / "parts.py").write_text(site.evil)
    (site.folder / "click.py").write_text(site.evil)

    served = site.serve()

    assert served.returncode == 0, served.stderr
    assert not site.mark.exists()


def test_forged_byte_code_is_not_run(site):
    source = site.packages / "parts" / "__init__.py"
    genuine, stamp = source.read_text(), source.stat()
    source.write_text(genuine.replace("from", site.evil.replace("\n", ";") + "from"))
    cache = Path(importlib.util.cache_from_source(str(source)))
    evil = source.read_text()
    source.write_text(evil)
    py_compile.compile(str(source), cfile=str(cache), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    source.write_text(genuine)
    os.utime(source, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))

    served = site.serve()

    assert served.returncode == 0, served.stderr
    assert not site.mark.exists()


@pytest.mark.parametrize("name", [f"scorer{importlib.machinery.EXTENSION_SUFFIXES[0]}", "scorer/__init__.py", "scorer.abi3.so"], ids=repr)
def test_a_file_that_python_prefers_to_the_locked_one_is_refused(site, name):
    intruder = site.packages / "parts" / name
    intruder.parent.mkdir(exist_ok=True)
    intruder.write_text(site.evil)

    served = site.serve()

    assert served.returncode == 4, served.stderr
    assert f"expected {site.packages / 'parts' / 'scorer.py'}" in served.stderr
    assert not site.mark.exists()


def test_a_module_of_a_locked_package_that_is_not_in_its_record_is_refused(site):
    (site.packages / "parts" / "extra.py").write_text(site.evil)
    _append(site, "parts/scorer.py", "\nimport parts.extra\n")

    served = site.serve()

    assert served.returncode == 4, served.stderr
    assert "parts.extra" in served.stderr
    assert str(site.packages / "parts" / "extra.py") in served.stderr
    assert not site.mark.exists()


def _append(site: Site, name: str, text: str) -> None:
    """Change a module, its RECORD and the lock, as a new release would."""
    (site.packages / name).write_text((site.packages / name).read_text() + text)
    _record_again(site)
    assert site.endpick("lock").returncode == 0


def _record_again(site: Site) -> None:
    record = site.packages / "acme_parts-1.0.dist-info" / "RECORD"
    record.write_text("".join(record_line(site.packages, site.packages / "parts" / f"{name}.py") for name in ("__init__", "scorer")))


def test_a_metadata_directory_that_calls_itself_endpick_is_not_endpick(site, make_distribution):
    (site.packages / "evil.py").write_text(site.evil)
    make_distribution("endpick", {"acme.evil": "evil:Evil"}, version="9.9", modules={}, root=site.packages)
    (site.folder / "config.yaml").write_text(
        "apiVersion: endpick/v1alpha1\nkind: EndpointPickerConfig\npluginPolicy: {allowDistributions: [acme-parts]}\n"
        "plugins:\n  - type: file-discovery\n    parameters: {path: endpoints.yaml}\n  - type: acme.evil\n" + TAIL
    )

    served = site.endpick("serve", "config.yaml", *OPTIONS)

    assert served.returncode == 4, served.stderr
    assert not site.mark.exists()


def test_a_zip_on_the_path_does_not_replace_a_locked_module(site, tmp_path):
    archive = tmp_path / "shadow.zip"
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("parts.py", site.evil)

    site.refused(f"{archive}/parts.py", search_path=str(archive))


def test_the_lock_names_the_format_it_has(site):
    assert json.loads((site.folder / "endpick.lock.json").read_text())["format"] == 2
