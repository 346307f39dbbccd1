"""What a RECORD, a source directory and their peculiarities come to."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import os
import sys

import pytest

from conftest import record_line
from endpick.diagnostics import Code
from endpick.host.contents import contents_of, owner_of
from endpick.host.discovery import discover
from endpick.host.guard import ImportGuard
from endpick.host.hook_objects import discover_hook_objects
from endpick.host.lock import Lock, lock_of, read_lock
from endpick.host.lock_check import LockCheck
from endpick.host.record import matches, read_record
from endpick.host.resolution import Reference

ENTRY_POINTS = {"acme.a": "held:A"}


@pytest.fixture(autouse=True)
def own_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def first_on_path(*folders):
    for folder in reversed(folders):
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()


def the_candidate(root):
    (candidate,) = discover([str(root)])
    return candidate


def add_rows(root, *rows, name="held"):
    with (root / f"{name}-1.0.dist-info" / "RECORD").open("a") as record:
        record.write("".join(f"{row}\n" for row in rows))


def refuses_to_import(root, module="held"):
    """Whether a guard that was locked to what is in `root` now refuses the module."""
    candidate = the_candidate(root)
    guard = ImportGuard()
    try:
        if LockCheck(lock_of([candidate]), guard).plugin(Reference(candidate.type), candidate) is not None:
            return True
        importlib.invalidate_caches()
        importlib.import_module(module)
    except ImportError:
        return True
    finally:
        guard.withdraw()
    return False


@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
def test_strong_digests_are_compared(algorithm):
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, b"x").digest()).rstrip(b"=").decode()

    assert matches(b"x", f"{algorithm}={digest}")
    assert not matches(b"y", f"{algorithm}={digest}")


def test_weak_and_unknown_digests_are_never_right():
    weak = base64.urlsafe_b64encode(hashlib.md5(b"x").digest()).rstrip(b"=").decode()

    assert not matches(b"x", f"md5={weak}")
    assert not matches(b"x", "nonsense")
    assert not matches(b"x", "")


def test_a_module_that_record_lists_without_a_digest_is_not_loaded(make_distribution):
    root = make_distribution("held", ENTRY_POINTS, modules={"held": "", "other": ""})
    first_on_path(root)
    record = root / "held-1.0.dist-info" / "RECORD"
    record.write_text("held.py,,\n" + record_line(root, root / "other.py"))

    assert set(contents_of(the_candidate(root)).digests) == {f"{root}/other.py"}
    assert refuses_to_import(root)


def test_a_record_that_contradicts_itself_does_not_count_for_that_file(make_distribution):
    root = make_distribution("held", ENTRY_POINTS, modules={"held": "", "other": ""})
    first_on_path(root)
    before = contents_of(the_candidate(root)).fingerprint
    add_rows(root, "./held.py,sha256=AAAA,1")

    contents = contents_of(the_candidate(root))

    assert contents.fingerprint != before
    assert f"{root}/held.py" not in contents.digests
    assert f"{root}/other.py" in contents.digests
    assert refuses_to_import(root)


def test_the_same_row_twice_is_one_row(make_distribution):
    root = make_distribution("held", ENTRY_POINTS, modules={"held": ""})
    before = contents_of(the_candidate(root))
    add_rows(root, record_line(root, root / "held.py").strip())

    assert contents_of(the_candidate(root)) == before


@pytest.mark.parametrize("path", ["../outside.py", "held/../../outside.py", "/etc/outside.py"])
def test_a_path_that_leads_out_of_the_directory_is_no_module(make_distribution, path):
    root = make_distribution("held", ENTRY_POINTS, modules={"held": ""})
    before = contents_of(the_candidate(root))
    add_rows(root, f"{path},sha256=AAAA,1")

    assert contents_of(the_candidate(root)) == before


def test_a_record_that_is_not_text_is_none(make_distribution):
    root = make_distribution("held", ENTRY_POINTS)
    (root / "held-1.0.dist-info" / "RECORD").write_bytes(b"\xff\xfe")

    assert read_record(str(root / "held-1.0.dist-info")).digests is None


def test_files_that_can_be_no_modules_are_none(make_distribution):
    root = make_distribution("held", ENTRY_POINTS, modules={"held": "", "held-stubs.__init__": "", "bin.0run": "", "__init__": ""})

    assert set(contents_of(the_candidate(root)).modules) == {"held", "held-stubs", "bin.0run"}, "code may import what no statement spells"


def test_without_a_record_the_sources_beside_the_metadata_count(make_distribution, tmp_path):
    root = make_distribution("held", ENTRY_POINTS, modules={"held.__init__": "", "held.inner": ""}, egg_info=True)
    first_on_path(root)
    contents = contents_of(the_candidate(root))

    assert set(contents.modules) == {"held", "held.inner"}
    (root / "held" / "native.abi3.so").write_bytes(b"1")
    changed = contents_of(the_candidate(root))
    assert "held.native" in changed.modules
    assert changed.fingerprint != contents.fingerprint
    (root / "held" / "deeper").mkdir()
    (root / "held" / "native.abi3.so").rename(root / "held" / "deeper" / "native.abi3.so")
    assert contents_of(the_candidate(root)).fingerprint != changed.fingerprint, "where a file lies counts as well"


@pytest.fixture
def editable(make_distribution, tmp_path):
    """An editable install: metadata in one directory, the source in another."""
    site = make_distribution("held", ENTRY_POINTS, modules={}, root=tmp_path / "site")
    source = tmp_path / "project" / "src" / "held"
    source.mkdir(parents=True)
    (source / "__init__.py").write_text("")
    (source / "inner.py").write_text("")
    (site / "held-1.0.dist-info" / "direct_url.json").write_text(
        json.dumps({"url": f"file://{tmp_path}/project", "dir_info": {"editable": True}})
    )
    first_on_path(tmp_path / "project" / "src", site)
    return site


def test_of_an_editable_install_the_sources_count_file_by_file(editable, tmp_path):
    candidate = the_candidate(editable)
    guard = ImportGuard()
    inner = tmp_path / "project" / "src" / "held" / "inner.py"
    try:
        assert LockCheck(lock_of([candidate]), guard).plugin(Reference("acme.a"), candidate) is None
        importlib.import_module("held")
        inner.write_text("raise AssertionError\n")
        with pytest.raises(ImportError, match=r"'held\.inner' of held 1\.0 has changed since it was locked"):
            importlib.import_module("held.inner")
    finally:
        guard.withdraw()


def test_an_editable_install_is_not_replaced_by_what_comes_first_on_the_path(editable, tmp_path):
    candidate = the_candidate(editable)
    lock = lock_of([candidate])
    (tmp_path / "shadow" / "held").mkdir(parents=True)
    (tmp_path / "shadow" / "held" / "__init__.py").write_text("")
    first_on_path(tmp_path / "shadow")

    fault = LockCheck(lock).plugin(Reference("acme.a"), the_candidate(editable))

    assert fault.code is Code.E0308
    assert f"would be loaded from {tmp_path}/shadow/held/__init__.py, expected a file of held 1.0 in {tmp_path}/project" in fault.message


def test_a_changed_source_of_an_editable_install_is_a_changed_plugin(editable, tmp_path):
    lock = lock_of([the_candidate(editable)])
    (tmp_path / "project" / "src" / "held" / "new.py").write_text("")

    assert "has changed since it was locked" in LockCheck(lock).plugin(Reference("acme.a"), the_candidate(editable)).message


@pytest.fixture
def leading_out(make_distribution, tmp_path):
    """A distribution whose entry point leads into another one."""
    library = make_distribution("library", {}, modules={"library": "class A: ..."})
    root = make_distribution("held", {"acme.a": "library:A"}, modules={"unrelated": ""})
    first_on_path(root, library)
    return root, library


def test_the_distribution_into_which_an_entry_point_leads_is_locked_with_it(leading_out):
    root, library = leading_out
    lock = lock_of([the_candidate(root)])
    (owner,) = lock.owners

    assert (owner.distribution, owner.version) == ("library", "1.0")
    assert read_lock(lock.render(), "f") == lock
    guard = ImportGuard()
    try:
        assert LockCheck(lock, guard).plugin(Reference("acme.a"), the_candidate(root)) is None
        (library / "library.py").write_text("raise AssertionError\n")
        with pytest.raises(ImportError, match=r"'library' of library 1\.0 has changed since it was locked"):
            importlib.import_module("library")
    finally:
        guard.withdraw()


def test_an_entry_point_may_not_lead_into_what_is_not_locked_or_has_changed(leading_out):
    root, library = leading_out
    lock = lock_of([the_candidate(root)])

    unlocked = LockCheck(Lock(lock.plugins, lock.hooks)).plugin(Reference("acme.a"), the_candidate(root))
    (library / "library.py").write_text("# changed\n")
    altered = LockCheck(lock).plugin(Reference("acme.a"), the_candidate(root))

    assert unlocked.message.startswith(f"'acme.a' from held 1.0 leads to {library}/library.py, which belongs to library 1.0; the lock")
    assert altered.message == "files of library 1.0 were changed after it was installed: library.py"


def test_an_entry_point_may_not_lead_to_a_file_that_no_distribution_brings(leading_out, tmp_path):
    root, _ = leading_out
    lock = lock_of([the_candidate(root)])
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "library.py").write_text("")
    first_on_path(tmp_path / "shadow")

    fault = LockCheck(lock).plugin(Reference("acme.a"), the_candidate(root))

    assert fault.message.startswith(f"'library' of held 1.0 would be loaded from {tmp_path}/shadow/library.py, expected a file of held 1.0")


def test_a_module_that_is_not_there_has_no_owner():
    assert owner_of("no_such_module_anywhere") is None


def test_spellings_of_a_distributions_name_are_one_name(make_distribution):
    root = make_distribution("Held.Things", ENTRY_POINTS, modules={"held": ""})
    first_on_path(root)
    lock = lock_of([the_candidate(root)])
    respelt = read_lock(lock.render().replace("Held.Things", "held_things"), "f")

    assert LockCheck(respelt).plugin(Reference("acme.a"), the_candidate(root)) is None


def test_the_sources_of_an_editable_hook_object_are_locked(make_distribution, tmp_path):
    site = make_distribution("held", {"hook": "held:Hook"}, group="endpick.hooks.v1", modules={}, root=tmp_path / "site")
    source = tmp_path / "project" / "held.py"
    source.parent.mkdir()
    source.write_text("")
    (site / "held-1.0.dist-info" / "direct_url.json").write_text(
        json.dumps({"url": f"file://{tmp_path}/project", "dir_info": {"editable": True}})
    )
    first_on_path(tmp_path / "project", site)
    (hook,) = discover_hook_objects([str(site)])
    lock = lock_of((), [hook])

    assert LockCheck(lock).hook_object(Reference("hook"), hook) is None
    source.write_text("# changed\n")
    assert "has changed since it was locked" in LockCheck(lock).hook_object(Reference("hook"), hook).message


def test_what_cannot_be_imported_of_an_editable_install_is_left_out(editable, tmp_path):
    """Editors leave links to nothing beside the files that are open in them."""
    package = tmp_path / "project" / "src" / "held"
    before = contents_of(the_candidate(editable))
    (package / ".#inner.py").symlink_to("nobody@nowhere")
    (package / "folder.py").mkdir()
    os.mkfifo(package / "pipe.py")

    assert contents_of(the_candidate(editable)) == before


@pytest.mark.timeout(10)
def test_recorded_files_that_became_a_pipe_or_have_no_possible_name_are_altered(make_distribution):
    root = make_distribution("held", ENTRY_POINTS, modules={"held": ""})
    add_rows(root, "pipe.py,sha256=x,1", "nul\0.py,sha256=x,1")
    os.mkfifo(root / "pipe.py")

    assert set(contents_of(the_candidate(root)).altered()) == {"pipe.py", "nul\0.py"}


def test_a_record_with_a_field_of_a_megabyte_is_none(make_distribution):
    root = make_distribution("held", ENTRY_POINTS, modules={"held": ""})
    add_rows(root, f'"{"x" * 2**20}",sha256=x,1')

    assert not contents_of(the_candidate(root)).recorded
