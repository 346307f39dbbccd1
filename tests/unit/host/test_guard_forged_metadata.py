"""What a writer of metadata can do whose digest stays, or who takes it away: names that were locked stay guarded."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import record_line
from endpick.host.discovery import discover
from endpick.host.guard import UntrustedModuleError
from endpick.host.locating import locate
from endpick.host.lock import Lock, lock_of
from endpick.host.lock_check import LockCheck
from endpick.host.resolution import Reference
from guarding import EVIL, first_on_path, refusal

FLAT = {"guarded.__init__": "", "lone": "VALUE = 1\n", "sibling": "VALUE = 2\n"}


@pytest.fixture
def flat(make_distribution, guard, tmp_path) -> tuple[Path, Lock]:
    """A distribution with modules beside its package, and its lock."""
    root = make_distribution("acme-guarded", {"acme.a": "guarded:C"}, modules=FLAT, root=tmp_path / "site")
    first_on_path(root)
    return root, lock_of(discover([str(root)]))


def judge(guard, root: Path, lock: Lock) -> None:
    """What `make_plan` does before it imports anything."""
    importlib.invalidate_caches()
    LockCheck(lock, guard).guard_all(discover([str(root)]))


def rows(root: Path) -> Path:
    """The RECORD of the distribution."""
    return root / "acme_guarded-1.0.dist-info" / "RECORD"


def a_row_without_a_digest(root: Path) -> str:
    return rows(root).read_text() + "lone.py,,\n"


def a_path_that_holds_another_row(root: Path) -> str:
    first, second = record_line(root, root / "lone.py").split(","), record_line(root, root / "sibling.py").split(",")
    others = _rows_of_others(root)
    return f'{others}"{first[0]},{first[1]}\n{second[0]}",{second[1]},\n'


def a_digest_that_holds_another_row(root: Path) -> str:
    first, second = record_line(root, root / "lone.py").split(","), record_line(root, root / "sibling.py").split(",")
    others = _rows_of_others(root)
    return f'{others}{first[0]},"{first[1]}\n{second[0]},{second[1]}",\n'


def _rows_of_others(root: Path) -> str:
    return "".join(line for line in rows(root).read_text().splitlines(keepends=True) if not line.startswith(("lone", "sibling")))


@pytest.mark.parametrize("forged", [a_row_without_a_digest, a_path_that_holds_another_row, a_digest_that_holds_another_row])
def test_a_record_that_was_written_to_look_the_same_does_not_let_a_file_go(flat, guard, forged: Callable[[Path], str]):
    root, lock = flat
    content = forged(root)
    (root / "lone.py").write_text(EVIL)
    rows(root).write_text(content)
    judge(guard, root, lock)

    assert "lone.py" in refusal("lone").what


def test_a_record_whose_rows_swallow_the_next_one_does_not_let_that_go(flat, guard):
    root, lock = flat
    content = a_digest_that_holds_another_row(root)
    (root / "sibling.py").write_text(EVIL)
    rows(root).write_text(content)
    judge(guard, root, lock)

    assert "sibling.py" in refusal("sibling").what


def test_a_module_beside_the_package_that_record_gives_no_digest_is_not_loaded(make_distribution, guard, tmp_path):
    root = make_distribution("acme-guarded", {"acme.a": "guarded:C"}, modules=FLAT, root=tmp_path / "site")
    first_on_path(root)
    rows(root).write_text(rows(root).read_text().replace(record_line(root, root / "lone.py"), "lone.py,,\n"))
    lock = lock_of(discover([str(root)]))
    (root / "lone.py").write_text(EVIL)
    judge(guard, root, lock)

    assert "lone.py" in refusal("lone").what


def no_record(root: Path) -> None:
    rows(root).unlink()


def a_record_of_something_else(root: Path) -> None:
    rows(root).write_text(record_line(root, root / "guarded" / "__init__.py"))


def no_metadata(root: Path) -> None:
    shutil.rmtree(rows(root).parent)


def an_editable_install_of_another_directory(root: Path) -> None:
    elsewhere = {"url": f"file://{root.parent}/elsewhere", "dir_info": {"editable": True}}
    (rows(root).parent / "direct_url.json").write_text(json.dumps(elsewhere))


@pytest.mark.parametrize("hidden", [no_record, a_record_of_something_else, no_metadata, an_editable_install_of_another_directory])
@pytest.mark.parametrize("module", ["lone", "guarded"])
def test_names_that_metadata_tells_no_more_stay_guarded(flat, guard, hidden: Callable[[Path], None], module):
    """Nothing of the distribution is used: it would only be found out by what imports it."""
    root, lock = flat
    (root / ("lone.py" if module == "lone" else "guarded/__init__.py")).write_text(EVIL)
    hidden(root)
    judge(guard, root, lock)

    assert "acme-guarded" in refusal(module).what


def test_a_lock_file_without_names_reserves_none(flat, guard):
    root, lock = flat
    no_metadata(root)
    judge(guard, root, Lock(lock.plugins, lock.hooks, lock.owners))

    assert importlib.import_module("lone").VALUE == 1


def test_names_are_reserved_as_the_newest_lock_file_says(flat, guard):
    root, lock = flat
    no_metadata(root)
    judge(guard, root, lock)
    with pytest.raises(UntrustedModuleError):
        importlib.import_module("lone")
    judge(guard, root, Lock())

    assert importlib.import_module("lone").VALUE == 1


def test_a_locked_distribution_into_which_an_unused_entry_point_leads_is_guarded_as_well(make_distribution, guard, tmp_path):
    root = make_distribution("acme-guarded", {"acme.a": "sibling:C"}, modules={"guarded.__init__": ""}, root=tmp_path / "site")
    make_distribution("acme-sibling", modules={"sibling": "VALUE = 1\n"}, root=root)
    first_on_path(root)
    lock = lock_of(discover([str(root)]))
    (root / "sibling.py").write_text(EVIL)
    judge(guard, root, lock)

    assert "'sibling' of acme-sibling 1.0 has changed" in refusal("sibling").what
    assert "sibling" not in sys.modules


@pytest.mark.parametrize("hidden", [no_record, a_record_of_something_else, no_metadata, an_editable_install_of_another_directory])
def test_names_of_what_entry_points_lead_into_stay_guarded(make_distribution, guard, tmp_path, hidden: Callable[[Path], None]):
    root = make_distribution("acme-leading", {"acme.a": "lone:C"}, modules={"leading": ""}, root=tmp_path / "site")
    make_distribution("acme-guarded", modules={"guarded.__init__": "", "lone": "VALUE = 1\n"}, root=root)
    first_on_path(root)
    lock = lock_of(discover([str(root)]))
    (root / "lone.py").write_text(EVIL)
    hidden(root)
    judge(guard, root, lock)

    assert "acme-guarded" in refusal("lone").what


def test_extras_behind_a_target_do_not_lead_past_the_lock(make_distribution, guard, tmp_path):
    root = make_distribution("acme-guarded", {"acme.a": "sibling [extra]"}, modules={"guarded.__init__": ""}, root=tmp_path / "site")
    (root / "sibling.py").write_text(EVIL)
    first_on_path(root)
    (candidate,) = discover([str(root)])

    fault = LockCheck(lock_of([candidate]), guard).plugin(Reference("acme.a"), candidate)

    assert f"'sibling' of acme-guarded 1.0 would be loaded from {root}/sibling.py" in fault.message


def test_a_finder_of_the_old_kind_does_not_keep_a_module_from_being_located(flat):
    root, _ = flat
    finder = object()
    sys.meta_path.insert(0, finder)
    try:
        assert locate("lone") == root / "lone.py"
    finally:
        sys.meta_path.remove(finder)
