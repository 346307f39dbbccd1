"""Ways to have another file loaded than the one that was locked, tried on a guarded distribution."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import logging
import shutil
import sys
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

from conftest import record_line
from endpick.host.guard import UntrustedModuleError
from guarding import EVIL, MODULES, RAN, first_on_path, refusal, verdict


def test_what_is_locked_is_imported_without_byte_code(guarded, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    root = guarded()

    assert importlib.import_module("guarded.deep.leaf").VALUE == 2
    assert list(root.rglob("*.pyc")) == []
    assert importlib.import_module("guarded").__file__ == str(root / "guarded" / "__init__.py")


def test_what_nothing_guards_is_imported_as_ever(guarded, tmp_path):
    guarded()
    (first_on_path(tmp_path / "other") / "lone.py").write_text("VALUE = 3\n")

    assert importlib.import_module("lone").VALUE == 3


def test_a_module_that_does_not_exist_is_missing_and_not_refused(guarded):
    guarded()

    with pytest.raises(ModuleNotFoundError, match=r"guarded\.nothing"):
        importlib.import_module("guarded.nothing")


def test_a_module_replaced_between_check_and_import_is_refused(guarded, caplog):
    root = guarded()
    (root / "guarded" / "inner.py").write_text(EVIL)

    with caplog.at_level(logging.ERROR):
        error = refusal("guarded.inner")

    assert f"'guarded.inner' of acme-guarded 1.0 has changed since it was locked: {root}/guarded/inner.py" in str(error)
    assert "endpick lock" in error.repair
    assert "import refused: 'guarded.inner'" in caplog.text, "a plugin may swallow the exception"


def test_a_module_that_a_plugin_imports_late_is_judged_then(guarded):
    root = guarded({"guarded.__init__": "def act():\n    import guarded.late\n", "guarded.late": ""})
    module = importlib.import_module("guarded")
    (root / "guarded" / "late.py").write_text(EVIL)
    importlib.invalidate_caches()

    with pytest.raises(UntrustedModuleError):
        module.act()


@pytest.mark.parametrize("make", ["module", "package", "zip"])
def test_another_entry_of_the_path_does_not_shadow(guarded, tmp_path, make):
    root = guarded()
    shadow = first_on_path(tmp_path / "shadow")
    file = shadow / ("guarded.py" if make == "module" else "guarded/__init__.py")
    if make == "zip":
        with zipfile.ZipFile(tmp_path / "shadow.zip", "w") as archive:
            archive.writestr("guarded/__init__.py", EVIL)
        sys.path[0], file = str(tmp_path / "shadow.zip"), tmp_path / "shadow.zip" / "guarded" / "__init__.py"
    else:
        file.parent.mkdir(exist_ok=True)
        file.write_text(EVIL)

    error = refusal("guarded")

    assert error.what == f"'guarded' of acme-guarded 1.0 would be loaded from {file}, expected {root}/guarded/__init__.py"
    assert error.path == str(file)


@pytest.mark.parametrize("name", [f"inner{EXTENSION_SUFFIXES[0]}", f"inner{EXTENSION_SUFFIXES[-1]}", "inner/__init__.py"])
def test_a_file_that_python_prefers_is_refused(guarded, name):
    root = guarded()
    file = root / "guarded" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(EVIL)

    assert refusal("guarded.inner").what.endswith(f"would be loaded from {file}, expected {root}/guarded/inner.py")


def test_byte_code_in_the_place_of_its_source_is_refused(guarded, tmp_path):
    import py_compile

    root = guarded()
    evil = tmp_path / "evil.py"
    evil.write_text(EVIL)
    (root / "guarded" / "inner.py").unlink()
    py_compile.compile(str(evil), cfile=str(root / "guarded" / "inner.pyc"))

    assert "inner.pyc, expected" in refusal("guarded.inner").what


def test_an_unlisted_module_of_a_guarded_package_is_refused(guarded):
    root = guarded()
    (root / "guarded" / "extra.py").write_text(EVIL)

    assert refusal("guarded.extra").what.endswith(
        f"would be loaded from {root}/guarded/extra.py, which no RECORD of a locked distribution lists"
    )


def test_a_package_that_looks_elsewhere_for_its_modules_finds_no_foreign_ones(guarded, tmp_path):
    guarded({"guarded.__init__": f"__path__.insert(0, {str(tmp_path / 'elsewhere')!r})\n", "guarded.inner": ""})
    first_on_path(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "inner.py").write_text(EVIL)

    assert f"{tmp_path}/elsewhere/inner.py, expected" in refusal("guarded.inner").what


def test_a_package_may_give_its_own_files_other_names(guarded):
    guarded(
        {
            "guarded.__init__": "import os\n__path__.append(os.path.join(__path__[0], 'vendored'))\n",
            "guarded.vendored.__init__": "",
            "guarded.vendored.tool": "VALUE = 4\n",
        }
    )

    assert importlib.import_module("guarded.tool").VALUE == 4


def test_a_module_that_is_a_link_is_judged_by_what_it_holds(guarded, tmp_path):
    root = guarded()
    genuine = tmp_path / "store.py"
    genuine.write_text(MODULES["guarded.inner"])
    evil = tmp_path / "evil.py"
    evil.write_text(EVIL)
    for target, name in ((genuine, "guarded/inner.py"), (evil, "guarded/deep/leaf.py")):
        (root / name).unlink()
        (root / name).symlink_to(target)

    assert importlib.import_module("guarded.inner").VALUE == 1
    assert "has changed" in refusal("guarded.deep.leaf").what


def test_a_path_entry_that_is_a_link_to_the_directory_leads_to_the_same_files(guarded, tmp_path):
    root = guarded()
    (tmp_path / "alias").symlink_to(root)
    first_on_path(tmp_path / "alias")

    assert importlib.import_module("guarded.inner").VALUE == 1


def test_a_locked_file_under_a_name_that_nothing_guards_is_judged_as_well(guarded, tmp_path):
    root = guarded()
    sys.path.insert(0, str(root / "guarded" / "deep"))
    (root / "guarded" / "deep" / "leaf.py").write_text(EVIL)

    assert "has changed" in refusal("leaf").what


def test_a_locked_file_does_not_take_the_place_of_another_locked_module(guarded):
    fakes = {"guarded.fakes.__init__": "", "guarded.fakes.guarded": EVIL, "guarded.fakes.inner": EVIL, "guarded.inner": "VALUE = 1\n"}
    root = guarded({"guarded.__init__": "", **fakes})
    sys.path.insert(0, str(root / "guarded" / "fakes"))

    assert "would be loaded from" in refusal("guarded").what
    sys.path.remove(str(root / "guarded" / "fakes"))
    importlib.import_module("guarded").__path__ = [str(root / "guarded" / "fakes")]
    assert "would be loaded from" in refusal("guarded.inner").what
    assert RAN == []
    importlib.import_module("guarded").__path__ = [str(root / "guarded")]
    assert importlib.import_module("guarded.inner").VALUE == 1


def test_of_a_module_and_a_package_of_one_name_the_one_that_python_prefers_is_loaded(guarded):
    guarded({"guarded.__init__": "", "guarded.twice": "VALUE = 1\n", "guarded.twice.__init__": "VALUE = 2\n"})
    assert importlib.import_module("guarded.twice").VALUE == 2


def test_parts_of_a_namespace_package_are_guarded_and_its_other_parts_are_free(guarded, tmp_path):
    guarded({"spread.ours.__init__": "VALUE = 5\n"}, "spread.ours:C")
    (first_on_path(tmp_path / "theirs") / "spread").mkdir()
    (tmp_path / "theirs" / "spread" / "others.py").write_text("VALUE = 6\n")

    assert importlib.import_module("spread.ours").VALUE == 5
    assert importlib.import_module("spread.others").VALUE == 6


def test_a_namespace_package_does_not_become_a_package(guarded, tmp_path):
    guarded({"spread.ours.__init__": ""}, "spread.ours:C")
    package = first_on_path(tmp_path / "theirs") / "spread"
    package.mkdir()
    (package / "__init__.py").write_text(EVIL)

    assert refusal("spread").what.endswith(f"would be loaded from {package}/__init__.py, expected a namespace package")


def test_a_package_does_not_become_a_namespace_package(guarded, tmp_path):
    root = guarded()
    shutil.rmtree(root / "guarded")
    (root / "guarded").mkdir()

    assert f"expected {root}/guarded/__init__.py" in refusal("guarded").what


def test_a_module_of_the_standard_library_is_pythons_whoever_brings_one_of_its_name(guarded):
    guarded({"guarded.__init__": "", "colorsys": EVIL})
    sys.path.append(sys.path.pop(0))
    sys.modules.pop("colorsys", None)

    assert importlib.import_module("colorsys").__file__.startswith(sys.base_prefix)


def test_an_extension_module_is_judged_before_it_is_loaded(guarded, guard):
    import numpy.linalg._umath_linalg as extension

    file = f"_umath_linalg{EXTENSION_SUFFIXES[0]}"
    root = guarded()
    shutil.copy(extension.__file__, root / "guarded" / file)
    record = root / "acme_guarded-1.0.dist-info" / "RECORD"
    record.write_text(record.read_text() + record_line(root, root / "guarded" / file))
    assert verdict(guard, root) is None

    assert importlib.import_module("guarded._umath_linalg").__file__ == str(root / "guarded" / file)
    with (root / "guarded" / file).open("ab") as library:
        library.write(b"\0")
    del sys.modules["guarded._umath_linalg"]
    assert "'guarded._umath_linalg' of acme-guarded 1.0 has changed" in refusal("guarded._umath_linalg").what
