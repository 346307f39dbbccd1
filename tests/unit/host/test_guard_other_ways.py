"""A second round of ways past the import guard, of which each needs a finder, a name or a file that Python rarely meets."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import py_compile
import runpy
import shutil
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

import pytest

from endpick.host.guard import UntrustedModuleError
from guarding import EVIL, MODULES, RAN, first_on_path, refusal


class Runs(Loader):
    """Runs foreign code in place of a module's."""

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        RAN.append(module.__name__)


class Lying(MetaPathFinder):
    """Says of one module what a test wants it to say."""

    def __init__(self, name, found):
        self.name = name
        self.found = found

    def find_spec(self, fullname, path, target=None):
        return self.found(fullname) if fullname == self.name else None


@pytest.fixture
def lying(guard):
    """`lying(name, found)`: a finder that comes after the guard and before all others."""
    made = []

    def stand(name, found):
        made.append(Lying(name, found))
        sys.meta_path.insert(sys.meta_path.index(guard) + 1, made[-1])

    yield stand
    for finder in made:
        sys.meta_path.remove(finder)


def test_a_finder_that_calls_a_locked_module_by_a_name_of_python_does_not_get_it_in(guarded, lying):
    guarded()
    lying("guarded.inner", lambda _: ModuleSpec("json.made_up", Runs()))

    assert "'guarded.inner' of acme-guarded 1.0 would be loaded from" in refusal("guarded.inner").what


def test_a_finder_that_gives_a_namespace_package_a_loader_does_not_have_it_run(guarded, lying, tmp_path):
    guarded()
    hidden = first_on_path(tmp_path / "hidden")

    def found(name):
        spec = ModuleSpec(name, Runs(), is_package=True)
        spec.submodule_search_locations = [str(hidden)]
        return spec

    lying("guarded.fresh", found)
    (hidden / "leaf.py").write_text(EVIL)

    importlib.import_module("guarded.fresh")
    assert "which no RECORD of a locked distribution lists" in refusal("guarded.fresh.leaf").what


def test_a_finder_that_names_the_locked_file_does_not_choose_what_loads_it(guarded, lying):
    root = guarded()
    file = str(root / "guarded" / "inner.py")
    lying("guarded.inner", lambda name: importlib.util.spec_from_file_location(name, file, loader=Runs()))

    assert importlib.import_module("guarded.inner").VALUE == 1


def test_a_finder_of_a_path_entry_that_names_the_locked_file_does_not_choose_what_loads_it(guarded, monkeypatch):
    root = guarded()

    class Entry:
        def find_spec(self, fullname, target=None):
            return importlib.util.spec_from_file_location(fullname, str(root / "guarded" / "inner.py"), loader=Runs())

    def hook(place):
        if place != str(root / "guarded"):
            raise ImportError
        return Entry()

    importlib.import_module("guarded")
    monkeypatch.setattr(sys, "path_hooks", [hook, *sys.path_hooks])
    sys.path_importer_cache.clear()

    assert importlib.import_module("guarded.inner").VALUE == 1
    sys.path_importer_cache.clear()


def imports_within_itself():
    """What a finder answers that imports what it is asked for, and has another module for whom asks meanwhile."""
    within = []

    def found(name):
        if within:
            return ModuleSpec(name, Runs())
        within.append(name)
        importlib.import_module(name)
        return None

    return found


def test_a_finder_that_imports_what_it_is_asked_for_does_not_get_its_own_in(guarded, lying):
    guarded()
    lying("guarded.inner", imports_within_itself())

    assert importlib.import_module("guarded.inner").VALUE == 1


def test_a_finder_that_finds_an_absent_module_only_when_it_is_asked_again_does_not_get_it_in(guarded, lying):
    """A plugin may try to import what is optional. Nothing is found under the guard, and Python would ask all finders once more."""
    guarded()
    asked = []

    def found(name):
        asked.append(name)
        return ModuleSpec(name, Runs()) if len(asked) > 1 else None

    lying("guarded.optional", found)

    with pytest.raises(ModuleNotFoundError) as missing:
        importlib.import_module("guarded.optional")
    assert missing.value.name == "guarded.optional"
    assert asked == ["guarded.optional"]


def test_a_finder_that_imports_an_absent_module_within_itself_does_not_get_it_in(guarded, lying):
    guarded()
    lying("guarded.optional", imports_within_itself())

    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("guarded.optional")


@pytest.mark.parametrize("name", ["30fcd23745efe32ce681__mypyc", "has-hyphen"])
def test_a_module_whose_name_no_import_statement_could_spell_is_not_shadowed(guarded, tmp_path, name):
    """What compiles packages puts all their code into a module of such a name."""
    root = guarded({**MODULES, name: "VALUE = 5\n"})
    assert importlib.import_module(name).VALUE == 5
    del sys.modules[name]
    (first_on_path(tmp_path / "shadow") / f"{name}.py").write_text(EVIL)

    assert refusal(name).what.endswith(f"shadow/{name}.py, expected {root}/{name}.py")


def test_byte_code_under_a_prefix_of_its_own_is_not_read(guarded, tmp_path, monkeypatch):
    root = guarded()
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "prefix"))
    evil, source = tmp_path / "evil.py", root / "guarded" / "inner.py"
    evil.write_text(EVIL)
    cached = importlib.util.cache_from_source(str(source))
    py_compile.compile(str(evil), cfile=cached, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)

    assert importlib.import_module("guarded.inner").VALUE == 1


def test_a_reload_is_judged_as_an_import_is(guarded):
    root = guarded()
    module = importlib.import_module("guarded.inner")
    (root / "guarded" / "inner.py").write_text(EVIL)

    with pytest.raises(UntrustedModuleError):
        importlib.reload(module)


def test_a_module_that_is_run_as_a_program_is_judged_as_an_import_is(guarded):
    root = guarded()
    (root / "guarded" / "inner.py").write_text(EVIL)

    with pytest.raises(ImportError, match="has changed since it was locked"):
        runpy.run_module("guarded.inner")


def test_a_lazy_import_is_judged_when_it_happens(guarded):
    root = guarded()
    spec = importlib.util.find_spec("guarded.inner")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (root / "guarded" / "inner.py").write_text(EVIL)

    with pytest.raises(UntrustedModuleError):
        _ = module.VALUE


def test_other_parts_of_a_package_that_looks_for_them_everywhere_are_not_taken(guarded, tmp_path):
    guarded({"guarded.__init__": "__path__ = __import__('pkgutil').extend_path(__path__, __name__)\n", "guarded.inner": ""})
    other = first_on_path(tmp_path / "other") / "guarded"
    other.mkdir()
    (other / "__init__.py").write_text("")
    (other / "added.py").write_text(EVIL)
    sys.path.append(sys.path.pop(0))

    assert refusal("guarded.added").what.endswith("added.py, which no RECORD of a locked distribution lists")


def test_a_package_directory_that_is_a_link_may_not_lead_elsewhere_later(guarded, tmp_path):
    root = guarded()
    shutil.copytree(root / "guarded", tmp_path / "genuine")
    shutil.copytree(root / "guarded", tmp_path / "forged")
    shutil.rmtree(root / "guarded")
    (root / "guarded").symlink_to(tmp_path / "forged")
    (tmp_path / "forged" / "inner.py").write_text(EVIL)

    importlib.invalidate_caches()
    with pytest.raises(UntrustedModuleError):
        importlib.import_module("guarded.inner")


def test_a_file_that_never_ends_is_no_module(guarded, tmp_path):
    """Beside it, an import would wait for ever."""
    root = guarded()
    file = root / "guarded" / "inner.py"
    file.unlink()
    os.mkfifo(file)

    with pytest.raises(ImportError):
        importlib.import_module("guarded.inner")


def test_names_that_look_alike_are_not_one(guarded, tmp_path):
    """Python makes one letter of several in source, and none in the name of a file."""
    root = guarded()
    (root / "guarded" / "\uff49nner.py").write_text(EVIL)

    assert importlib.import_module("guarded.inner").VALUE == 1
    assert "which no RECORD" in refusal("guarded.\uff49nner").what
