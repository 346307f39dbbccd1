"""Lock files, fingerprints, and finding modules without importing them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.diagnostics import Code, Diagnostic
from endpick.host.contents import contents_of
from endpick.host.discovery import discover
from endpick.host.hook_objects import discover_hook_objects
from endpick.host.locating import locate, module_files
from endpick.host.lock import Lock, LockedPlugin, load_lock, lock_of, read_lock
from endpick.host.lock_check import LockCheck
from endpick.host.resolution import Reference

ENTRY_POINTS = {"acme.b": "lockable:B", "acme.a": "lockable:A"}


def installed(*roots):
    return discover([str(root) for root in roots])


def check_lock(reference, candidate, lock):
    return LockCheck(lock).plugin(reference, candidate)


def check_hook_lock(reference, candidate, lock):
    return LockCheck(lock).hook_object(reference, candidate)


def differences(lock, candidates, hook_objects=()):
    return LockCheck(lock).differences(candidates, hook_objects)


def fingerprint(candidate):
    return contents_of(candidate).fingerprint


def altered_files(candidate):
    return contents_of(candidate).altered()


def test_a_lock_names_each_usable_type_once_per_distribution(make_distribution):
    roots = [
        make_distribution("lockable", ENTRY_POINTS),
        make_distribution("rival", {"acme.a": "rival:A", "Bad_Name": "rival:B"}),
        make_distribution("future", {"acme.c": "future:C"}, group="endpick.plugins.v2"),
    ]

    lock = lock_of(installed(*roots))

    assert [(plugin.type, plugin.distribution) for plugin in lock.plugins] == [
        ("acme.a", "lockable"),
        ("acme.a", "rival"),
        ("acme.b", "lockable"),
    ]


def test_a_lock_survives_being_written_and_read(make_distribution):
    lock = lock_of(installed(make_distribution("lockable", ENTRY_POINTS)))

    assert read_lock(lock.render(), "endpick.lock.json") == lock


@given(st.lists(st.builds(LockedPlugin, *[st.text(max_size=5)] * 5), max_size=5, unique=True), st.randoms())
def test_the_order_of_plugins_does_not_show(plugins, random):
    shuffled = list(plugins)
    random.shuffle(shuffled)

    assert Lock(tuple(plugins)).render() == Lock(tuple(shuffled)).render()
    assert read_lock(Lock(tuple(plugins)).render(), "f") == Lock(tuple(sorted(plugins)))


WITH_DISTRIBUTION = (
    '{"format": 2, "hooks": [], "owners": [],'
    ' "plugins": [{"type": "a", "distribution": %s, "version": "1", "target": "m:C", "digest": "x"}]}'
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the lock file is damaged: JSONDecodeError: "),
        ("[]", "the lock file is damaged: TypeError: "),
        ('{"plugins": []}', "the lock file is damaged: KeyError: 'format'"),
        ('{"format": 2, "plugins": []}', "the lock file is damaged: KeyError: 'hooks'"),
        ('{"format": 1, "plugins": []}', "is of format 1, this endpick reads format 2"),
        ('{"format": 2, "plugins": [{"type": "a", "colour": "red"}], "hooks": []}', "the lock file is damaged: TypeError: "),
        (WITH_DISTRIBUTION % "5", "the lock file is damaged: TypeError: an entry is no mapping of text to text"),
        (WITH_DISTRIBUTION % "null", "the lock file is damaged: TypeError: an entry is no mapping of text to text"),
        ("[" * 200_000, "the lock file is damaged: RecursionError"),
    ],
)
def test_what_is_no_lock_file_is_told(text, says):
    diagnostic = read_lock(text, "endpick.lock.json")

    assert isinstance(diagnostic, Diagnostic)
    assert diagnostic.code is Code.E0321
    assert says in diagnostic.message
    assert diagnostic.span.file == "endpick.lock.json"


def test_a_lock_file_that_is_not_text_is_told(tmp_path):
    (tmp_path / "lock").write_bytes(b"\xff\xfe")

    assert load_lock(tmp_path / "lock").code is Code.E0321


def test_a_lock_file_is_loaded_from_its_path(make_distribution, tmp_path):
    lock = lock_of(installed(make_distribution("lockable", ENTRY_POINTS)))
    (tmp_path / "good.json").write_text(lock.render())
    (tmp_path / "bad.json").write_text("{")

    assert load_lock(tmp_path / "good.json") == lock
    assert load_lock(tmp_path / "bad.json").span.file == str(tmp_path / "bad.json")


def test_only_what_the_host_could_load_is_compared(make_distribution):
    candidate, _ = installed(make_distribution("lockable", ENTRY_POINTS))
    lock = Lock(lock_of([candidate]).plugins)

    for unusable in (replace(candidate, api_major=2), replace(candidate, shadowed_by="/other")):
        (gone,) = differences(lock, [unusable])
        assert gone.message == "'acme.a' is locked to lockable 1.0, which does not offer it here"


def test_what_is_as_locked_passes(make_distribution):
    candidates = installed(make_distribution("lockable", ENTRY_POINTS))
    lock = lock_of(candidates)

    assert [check_lock(Reference(one.type), one, lock) for one in candidates] == [None, None]
    assert differences(lock, candidates) == ()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": "0.9"}, "the version was 0.9, now it is 1.0"),
        ({"target": "lockable:Old"}, "the entry point was lockable:Old, now it is lockable:A"),
        ({"digest": "sha256:00"}, "the version is still 1.0, but other files are installed: the digest was sha256:00, now sha256:"),
    ],
)
def test_each_change_is_told(make_distribution, change, says):
    candidate, _ = candidates = installed(make_distribution("lockable", ENTRY_POINTS))
    document = json.loads(lock_of(candidates).render())
    document["plugins"][0].update(change)

    drift = check_lock(Reference("acme.a"), candidate, read_lock(json.dumps(document), "f"))

    assert drift.code is Code.E0308
    assert drift.notes[0].startswith(says)


def test_a_type_from_another_distribution_than_locked_is_refused(make_distribution):
    lock = lock_of(installed(make_distribution("lockable", ENTRY_POINTS)))
    (rival,) = installed(make_distribution("rival", {"acme.a": "rival:A"}))

    drift = check_lock(Reference("acme.a"), rival, lock)

    assert drift.message == "'acme.a' is locked to lockable 1.0, but rival 1.0 provides it"
    assert {one.message for one in differences(lock, [rival])} == {
        "'acme.a' is locked to lockable 1.0, which does not offer it here",
        "'acme.b' is locked to lockable 1.0, which does not offer it here",
    }


def test_a_type_that_is_not_locked_is_refused(make_distribution):
    (candidate,) = installed(make_distribution("rival", {"acme.a": "rival:A"}))

    assert check_lock(Reference("acme.a"), candidate, Lock()).message == "'acme.a' from rival 1.0 is not in the lock file"


def test_hook_objects_are_locked_apart_from_plugin_types(make_distribution):
    root = make_distribution("hooky", {"acme.a": "hooky:Hook"}, group="endpick.hooks.v1")
    (hook,) = discover_hook_objects([str(root)])
    lock = lock_of((), [hook])

    assert [one.type for one in lock.hooks] == ["acme.a"]
    assert read_lock(lock.render(), "f") == lock
    assert check_hook_lock(Reference("acme.a"), hook, lock) is None
    assert check_hook_lock(Reference("acme.a"), hook, Lock(lock.hooks)).message == "'acme.a' from hooky 1.0 is not in the lock file"
    assert differences(lock, (), [hook]) == ()
    assert differences(lock, [hook]) != ()
    (root / "hooky.py").write_text("# changed\n")
    assert "files of hooky 1.0 were changed" in check_hook_lock(Reference("acme.a"), hook, lock).message


def test_a_type_that_a_hook_object_offers_is_pinned_with_its_distribution(make_distribution):
    root = make_distribution("hooky", {"hook": "hooky:Hook"}, group="endpick.hooks.v1")
    (hook,) = discover_hook_objects([str(root)])
    lock = lock_of((), [hook])
    offered = replace(hook, type="acme.offered", target="hooky:Offered")

    assert check_lock(Reference("acme.offered"), offered, lock) is None
    assert check_lock(Reference("acme.offered"), replace(offered, distribution="other"), lock) is not None
    assert check_lock(Reference("acme.offered"), replace(offered, version="2.0"), lock).notes == ("the version was 1.0, now it is 2.0",)


def test_a_fingerprint_ignores_what_installers_write(fixture_project, make_distribution, tmp_path):
    root = make_distribution("lockable", ENTRY_POINTS)
    before = fingerprint(installed(root)[0])
    record = root / "lockable-1.0.dist-info" / "RECORD"
    noise = ["lockable-1.0.dist-info/INSTALLER,sha256=x,1", "lockable-1.0.dist-info/direct_url.json,sha256=x,1", "../bin/run,sha256=x,1"]
    record.write_text("\n".join([*noise, *reversed(record.read_text().splitlines()), "__pycache__/lockable.pyc,,", "short", ""]))

    assert fingerprint(installed(root)[0]) == before


def test_altered_and_missing_files_are_named(make_distribution):
    root = make_distribution("lockable", {**ENTRY_POINTS, "acme.c": "also:C"})
    candidate = installed(root)[0]
    assert altered_files(candidate) == ()

    (root / "lockable.py").write_text("# changed\n")
    (root / "also.py").unlink()

    assert altered_files(candidate) == ("also.py", "lockable.py")


def test_many_altered_files_are_counted(make_distribution):
    names = [f"module_{number}" for number in range(8)]
    root = make_distribution("lockable", {"acme.a": "module_0:A"}, modules=dict.fromkeys(names, ""))
    candidates = installed(root)
    lock = lock_of(candidates)
    for name in names:
        (root / f"{name}.py").write_text("# changed\n")

    assert check_lock(Reference("acme.a"), candidates[0], lock).message.endswith("module_4.py and 3 more")


def test_the_fingerprint_of_an_editable_install_is_that_of_its_source(make_distribution, monkeypatch):
    root = make_distribution("lockable", ENTRY_POINTS)
    (root / "lockable-1.0.dist-info" / "direct_url.json").write_text(json.dumps({"url": f"file://{root}", "dir_info": {"editable": True}}))
    monkeypatch.syspath_prepend(root)
    candidate = installed(root)[0]
    before = fingerprint(candidate)

    (root / "unrelated.py").write_text("")
    assert fingerprint(candidate) == before
    (root / "lockable.py").write_text("# changed\n")
    assert fingerprint(candidate) != before
    assert altered_files(candidate) == ()


def test_modules_are_located_without_being_imported(tmp_path, monkeypatch):
    package = tmp_path / "located_package"
    (package / "inner").mkdir(parents=True)
    for file in ("__init__.py", "module.py", "inner/deep.py"):
        (package / file).write_text("raise AssertionError('imported')\n")
    (tmp_path / "located_module.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert locate("located_package") == package / "__init__.py"
    assert locate("located_package.module") == package / "module.py"
    assert locate("located_package.inner") == package / "inner"
    assert locate("located_package.inner.deep") == package / "inner" / "deep.py"
    assert locate("located_module") == tmp_path / "located_module.py"
    assert locate("located_module.x") is None
    assert locate("located_package.nothing.x") is None
    assert locate("no_such_module_anywhere") is None
    assert module_files(tmp_path / "located_module.py") == (tmp_path / "located_module.py",)
    assert module_files(package / "__init__.py") == module_files(package) == tuple(sorted(package.rglob("*.py")))
    assert not {name for name in sys.modules if name.startswith("located_")}
