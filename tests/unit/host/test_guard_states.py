"""The import guard beside other import hooks, earlier imports, reloads and its own diagnostics."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import pkgutil
import sys
from importlib.machinery import PathFinder
from types import ModuleType

import pytest

from conftest import record_line
from endpick.diagnostics import Code
from endpick.host.discovery import discover
from endpick.host.importing import import_target
from endpick.host.lock import lock_of
from endpick.host.lock_check import LockCheck
from endpick.host.resolution import Reference
from guarding import EVIL, MODULES, first_on_path, record_again, refusal, verdict


def test_an_import_hook_of_another_plugin_is_asked_after_the_guard_and_cannot_bring_its_own_file(guarded, guard, tmp_path):
    root = guarded()
    (tmp_path / "hook.py").write_text(EVIL)

    class Hook:
        @staticmethod
        def find_spec(name, path=None, target=None):
            return importlib.util.spec_from_file_location(name, tmp_path / "hook.py") if name == "guarded.inner" else None

    sys.meta_path.insert(0, Hook)
    try:
        guard.stand_first()
        assert f"{tmp_path}/hook.py, expected {root}/guarded/inner.py" in refusal("guarded.inner").what
    finally:
        sys.meta_path.remove(Hook)


def test_a_list_of_finders_that_has_a_mind_of_its_own_does_not_keep_the_guard_from_the_first_place(guard, monkeypatch):
    """As code that runs before endpick can leave one."""

    class Finders(list):
        def insert(self, _index, finder):
            self.append(finder)

    monkeypatch.setattr(sys, "meta_path", Finders(sys.meta_path))

    guard.stand_first()

    assert next(iter(sys.meta_path)) is guard


def test_a_module_that_a_hook_slipped_past_the_guard_is_noticed(guarded, guard):
    root = guarded()
    (candidate,) = discover([str(root)])
    check = LockCheck(lock_of([candidate]), guard)
    sys.meta_path.insert(0, PathFinder)
    try:
        importlib.import_module("guarded")
        fault = check.loaded(Reference(candidate.type), candidate)
    finally:
        sys.meta_path.remove(PathFinder)

    assert fault.code is Code.E0308
    assert fault.message == "'guarded' of acme-guarded 1.0 was loaded by another import hook, where endpick could not check it"


def test_a_hook_that_asks_the_guard_and_wraps_what_it_gets_is_no_harm(guarded, guard):
    root = guarded()
    (candidate,) = discover([str(root)])

    class Wrapping:
        @staticmethod
        def find_spec(name, path=None, target=None):
            return guard.find_spec(name, path, target) if name.startswith("guarded") else None

    sys.meta_path.insert(0, Wrapping)
    try:
        importlib.import_module("guarded.inner")
    finally:
        sys.meta_path.remove(Wrapping)

    assert LockCheck(lock_of([candidate]), guard).loaded(Reference(candidate.type), candidate) is None


def test_what_was_imported_before_the_check_is_refused(make_distribution, guard):
    root = make_distribution("acme-guarded", {"acme.g": "guarded:C"}, modules=MODULES)
    sys.path.insert(0, str(root))
    importlib.import_module("guarded.inner")

    fault = verdict(guard, root)

    assert fault.code is Code.E0308
    assert f"its module 'guarded' was imported from {root}/guarded/__init__.py before endpick could look at it" in fault.message
    assert "sitecustomize" in fault.help


def test_a_module_that_was_put_in_its_place_before_the_check_is_refused(make_distribution, guard, monkeypatch):
    """As a line of a .pth file can do, without any file."""
    root = make_distribution("acme-guarded", {"acme.g": "guarded:C"}, modules=MODULES)
    first_on_path(root)
    monkeypatch.setitem(sys.modules, "guarded", ModuleType("guarded"))

    assert "its module 'guarded' was imported from memory before endpick could look at it" in verdict(guard, root).message


def test_a_module_that_was_put_there_and_says_that_it_is_pythons_own_is_refused(make_distribution, guard, monkeypatch):
    root = make_distribution("acme-guarded", {"acme.g": "guarded:C"}, modules=MODULES)
    first_on_path(root)
    planted = ModuleType("guarded")
    planted.__spec__ = json.__spec__
    monkeypatch.setitem(sys.modules, "guarded", planted)

    assert "before endpick could look at it" in verdict(guard, root).message


def test_a_module_of_python_under_a_name_that_checked_code_gave_it_is_no_foreign_one(guarded, guard, monkeypatch):
    root = guarded()
    importlib.import_module("guarded.inner")
    monkeypatch.setitem(sys.modules, "guarded.json", json)

    assert verdict(guard, root) is None


def test_a_module_that_stands_in_the_place_of_one_that_nothing_uses_is_told(make_distribution, guard, monkeypatch):
    """Others may import it, and would get what is there."""
    root = make_distribution("acme-guarded", {"acme.g": "guarded:C", "acme.h": "guarded:D"}, modules=MODULES)
    first_on_path(root)
    candidates = discover([str(root)])
    check = LockCheck(lock_of(candidates), guard)
    monkeypatch.setitem(sys.modules, "guarded", ModuleType("guarded"))

    (fault,) = check.guard_all(candidates)

    assert fault.code is Code.E0308
    assert "its module 'guarded' was imported from memory before endpick could look at it" in fault.message


def test_another_state_is_not_loaded_on_top_of_the_first(guarded, guard):
    root = guarded()
    importlib.import_module("guarded.inner")
    assert verdict(guard, root) is None, "a reload of the same"
    (root / "guarded" / "inner.py").write_text("VALUE = 7\n")
    record_again(root)

    fault = verdict(guard, root)

    assert fault.message == "acme-guarded 1.0 cannot be checked: this process has loaded another state of it"
    assert fault.help == "restart endpick to load what is installed now"


def test_another_state_takes_the_place_of_one_that_was_never_loaded(guarded, guard):
    root = guarded()
    (root / "guarded" / "inner.py").write_text("VALUE = 7\n")
    (root / "guarded" / "deep" / "leaf.py").unlink()
    record_again(root)

    assert verdict(guard, root) is None
    assert importlib.import_module("guarded.inner").VALUE == 7
    (root / "guarded" / "deep" / "leaf.py").write_text(MODULES["guarded.deep.leaf"])
    assert "no RECORD" in refusal("guarded.deep.leaf").what, "it was listed, and is no longer"


def test_distributions_in_one_directory_are_guarded_apart_and_may_import_each_other(make_distribution, guard, tmp_path):
    site = tmp_path / "site"
    make_distribution("acme-guarded", {"acme.a": "guarded:C"}, modules={"guarded.__init__": "import sibling\n"}, root=site)
    make_distribution("acme-sibling", {"acme.b": "sibling:C"}, modules={"sibling": "VALUE = 8\n"}, root=site)
    sys.path.insert(0, str(site))
    candidates = discover([str(site)])
    lock = lock_of(candidates)

    for _ in range(2):  # a reload judges both once more
        check = LockCheck(lock, guard)
        assert [check.plugin(Reference(one.type), one) for one in candidates] == [None, None]
        importlib.import_module("guarded")
        assert [check.loaded(Reference(one.type), one) for one in candidates] == [None, None]
    (site / "sibling.py").write_text(EVIL)
    del sys.modules["sibling"]
    assert "acme-sibling 1.0 has changed" in refusal("sibling").what


def test_a_module_made_up_by_code_survives_a_reload(guarded, guard):
    root = guarded({"guarded.__init__": "import sys, types\nsys.modules['guarded.made_up'] = types.ModuleType('guarded.made_up')\n"})
    importlib.import_module("guarded")

    assert verdict(guard, root) is None


def test_a_module_made_up_by_code_and_a_second_name_of_one_are_no_harm(guarded, guard):
    root = guarded({"guarded.__init__": "import sys, types\nsys.modules['guarded.made_up'] = types.ModuleType('guarded.made_up')\n"})
    importlib.import_module("guarded")
    (candidate,) = discover([str(root)])

    assert LockCheck(lock_of([candidate]), guard).loaded(Reference(candidate.type), candidate) is None


@pytest.mark.parametrize(
    "spec", [lambda: None, lambda: sys.modules["guarded"].__spec__, lambda: json.__spec__], ids=["none", "own", "pythons"]
)
def test_a_module_made_up_in_the_place_of_a_file_is_noticed(guarded, guard, monkeypatch, spec):
    """As a finder can, while it is asked for another module: what code makes up has a name for which there is no file."""
    root = guarded()
    importlib.import_module("guarded")
    planted = ModuleType("guarded.inner")
    planted.__spec__ = spec()
    monkeypatch.setitem(sys.modules, "guarded.inner", planted)
    (candidate,) = discover([str(root)])

    fault = LockCheck(lock_of([candidate]), guard).loaded(Reference(candidate.type), candidate)

    assert fault.message == "'guarded.inner' of acme-guarded 1.0 was loaded by another import hook, where endpick could not check it"


def test_a_module_of_its_own_under_the_name_of_another_file_is_no_harm(guarded, guard, monkeypatch):
    root = guarded()
    deep = importlib.import_module("guarded.deep")
    monkeypatch.setitem(sys.modules, "guarded.inner", deep)
    (candidate,) = discover([str(root)])

    assert LockCheck(lock_of([candidate]), guard).loaded(Reference(candidate.type), candidate) is None


def test_the_refusal_of_an_import_is_a_diagnostic_at_the_entry(guarded):
    root = guarded()
    (candidate,) = discover([str(root)])
    (root / "guarded" / "__init__.py").write_text(EVIL)

    fault = import_target(Reference(candidate.type), candidate)

    assert fault.code is Code.E0308
    assert "has changed since it was locked" in fault.message
    assert fault.help == "install what was locked, or accept what is installed with `endpick lock`"


def test_data_of_a_guarded_package_can_be_read(guarded):
    root = guarded()
    (root / "guarded" / "table.txt").write_text("1 2 3")

    assert pkgutil.get_data("guarded", "table.txt") == b"1 2 3"


def test_a_locked_distribution_of_which_nothing_is_used_is_guarded_as_well(make_distribution, guard, tmp_path):
    site = tmp_path / "site"
    make_distribution("acme-guarded", {"acme.a": "guarded:C"}, modules={"guarded.__init__": ""}, root=site)
    make_distribution("acme-sibling", {"acme.b": "sibling:C"}, modules={"sibling": ""}, root=site)
    first_on_path(site)
    lock = lock_of(discover([str(site)]))
    LockCheck(lock, guard).guard_all(discover([str(site)]))
    (site / "sibling.py").write_text(EVIL)

    assert "acme-sibling 1.0 has changed" in refusal("sibling").what
    assert importlib.import_module("guarded").__file__ == f"{site}/guarded/__init__.py"


def test_a_distribution_that_differs_from_the_lock_may_not_be_imported_by_others(make_distribution, guard, tmp_path):
    root = make_distribution("acme-sibling", {"acme.b": "sibling:C"}, modules={"sibling": ""})
    first_on_path(root)
    lock = lock_of(discover([str(root)]))
    (root / "sibling.py").write_text(EVIL)
    (root / "acme_sibling-1.0.dist-info" / "RECORD").write_text(record_line(root, root / "sibling.py"))
    LockCheck(lock, guard).guard_all(discover([str(root)]))

    error = refusal("sibling")

    assert error.what == f"'sibling' of acme-sibling 1.0 is not what the lock file has: {root}/sibling.py"
    assert "endpick lock" in error.repair


def test_a_module_called_like_one_of_python_is_not_taken_from_elsewhere(guarded, tmp_path):
    guarded({"guarded.__init__": "", "colorsys": EVIL})
    sys.path.pop(0)
    (first_on_path(tmp_path / "shadow") / "colorsys.py").write_text(EVIL)
    sys.modules.pop("colorsys", None)

    assert f"would be loaded from {tmp_path}/shadow/colorsys.py" in refusal("colorsys").what


def test_a_module_of_python_that_is_loaded_is_no_reason_to_refuse_a_distribution_that_brings_one_of_its_name(make_distribution, guard):
    importlib.import_module("colorsys")
    root = make_distribution("acme-guarded", {"acme.g": "guarded:C"}, modules={"guarded.__init__": "", "colorsys": EVIL})
    first_on_path(root)

    assert verdict(guard, root) is None


def test_a_finder_of_the_old_kind_is_left_out(guard):
    finder = object()
    sys.meta_path.append(finder)
    try:
        assert guard.find_spec("guarded_nothing", None) is None
    finally:
        sys.meta_path.remove(finder)


def test_an_entry_point_may_lead_into_the_builtin_plugins_of_endpick(make_distribution, guard):
    """endpick's own modules run already, and are no reason to refuse it; of its plugins only those not loaded yet can be judged."""
    root = make_distribution("acme-guarded", {"acme.a": "endpick_builtin.scorers.load:QueueScorer"}, modules={"guarded.__init__": ""})
    first_on_path(root)
    (candidate,) = discover([str(root)])
    lock = lock_of([candidate])

    assert [one.distribution for one in lock.owners] == ["endpick"]
    assert LockCheck(lock).plugin(Reference("acme.a"), candidate) is None
