"""Lock files, and how the installed distributions differ from them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.diagnostics import Code, Diagnostic
from endpick.host.discovery import discover, discover_hook_objects
from endpick.host.environment import Lock, LockedDistribution, check_lock, load_lock, lock_of
from endpick.host.resolution import Reference

ENTRY_POINTS = {"acme.b": "lockable:B", "acme.a": "lockable:A"}


@pytest.fixture
def installed(make_distribution):
    """`installed(…)`: the candidates of one distribution called `lockable`, and its directory."""

    def make(**more):
        root = make_distribution("lockable", ENTRY_POINTS, **more)
        return discover([str(root)]), root

    return make


def test_lock_pins_each_distribution_once(installed, make_distribution):
    candidates, _ = installed()
    hook = make_distribution("hooky", {"hook": "hooky:Hook"}, group="endpick.hooks.v1")

    lock = lock_of([*candidates, *discover_hook_objects([str(hook)])])

    assert [(pin.distribution, pin.version) for pin in lock.pins] == [("hooky", "1.0"), ("lockable", "1.0")]


@given(st.lists(st.builds(LockedDistribution, *[st.text(max_size=5)] * 3), max_size=5, unique=True), st.randoms())
def test_lock_text_does_not_depend_on_order(tmp_path_factory, pins, random):
    shuffled = list(pins)
    random.shuffle(shuffled)
    file = tmp_path_factory.mktemp("lock") / "lock.json"
    file.write_text(Lock(tuple(pins)).render())

    assert Lock(tuple(pins)).render() == Lock(tuple(shuffled)).render()
    assert load_lock(file) == Lock(tuple(sorted(pins)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the lock file is damaged: JSONDecodeError: "),
        ("[]", "the lock file is damaged: TypeError: "),
        ("{}", "the lock file is damaged: KeyError: 'format'"),
        ('{"format": 1}', "the lock file is of format 1, this endpick reads format 3"),
        ('{"format": 3, "distributions": [{"colour": "red"}]}', "the lock file is damaged: TypeError: "),
        ("\xff", "the lock file is damaged: UnicodeDecodeError: "),
    ],
)
def test_lock_file_that_cannot_be_read_is_reported(tmp_path, text, message):
    file = tmp_path / "lock.json"
    file.write_bytes(text.encode("latin-1"))

    diagnostic = load_lock(file)

    assert isinstance(diagnostic, Diagnostic)
    assert (diagnostic.code, diagnostic.span.file) == (Code.E0321, str(file))
    assert diagnostic.message.startswith(message)


def test_missing_lock_file_is_reported(tmp_path):
    assert load_lock(tmp_path / "lock.json").code is Code.E0321


def test_unchanged_distribution_passes(installed):
    candidates, _ = installed()
    check = check_lock(lock_of(candidates), candidates)

    assert check.diagnostics() == ()
    assert [check.fault(Reference(one.type), one) for one in candidates] == [None, None]


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"version": "0.9"}, "the version was 0.9, now it is 1.0"),
        ({"digest": "sha256:00"}, "the version is still 1.0, but other files are installed: the digest was sha256:00, now sha256:"),
    ],
)
def test_changed_distribution_is_reported(installed, change, note):
    candidates, _ = installed()
    (pin,) = lock_of(candidates).pins
    check = check_lock(Lock((replace(pin, **change),)), candidates)

    fault = check.fault(Reference("acme.a"), candidates[0])

    assert (fault.code, fault.message) == (Code.E0308, "lockable has changed since it was locked")
    assert fault.notes[0].startswith(note)


def test_unlocked_and_missing_distributions_are_reported(installed):
    candidates, _ = installed()
    check = check_lock(Lock((LockedDistribution("gone", "2.0", ""),)), candidates)

    assert check.fault(Reference("acme.a"), candidates[0]).message == "lockable 1.0 is not in the lock file"
    assert [one.message for one in check.diagnostics()] == [
        "gone 2.0 is locked and offers nothing to endpick here",
        "lockable 1.0 is not in the lock file",
    ]


def test_type_offered_by_a_hook_object_is_locked_with_it(make_distribution):
    root = make_distribution("hooky", {"hook": "hooky:Hook"}, group="endpick.hooks.v1")
    (hook,) = discover_hook_objects([str(root)])
    offered = replace(hook, type="acme.offered", target="hooky:Offered")

    assert check_lock(lock_of([hook]), [hook]).fault(Reference("acme.offered"), offered) is None
    assert check_lock(Lock(), [hook]).fault(Reference("acme.offered"), offered) is not None


def test_digest_ignores_entries_written_by_installers(installed):
    candidates, root = installed()
    record = root / "lockable-1.0.dist-info" / "RECORD"
    before = lock_of(candidates)
    noise = ["lockable-1.0.dist-info/INSTALLER,sha256=x,1", "lockable-1.0.dist-info/direct_url.json,sha256=x,1", "../bin/run,sha256=x,1"]
    record.write_text("\n".join([*noise, *reversed(record.read_text().splitlines()), "__pycache__/lockable.pyc,,", ""]))

    assert lock_of(candidates) == before


def test_altered_and_missing_files_are_named(installed):
    modules = {f"module_{number}": "" for number in range(7)}
    candidates, root = installed(modules=modules)
    lock = lock_of(candidates)
    (root / "module_0.py").unlink()
    for name in list(modules)[1:]:
        (root / f"{name}.py").write_text("# changed\n")

    (fault,) = check_lock(lock, candidates).diagnostics()

    assert fault.message == (
        "files of lockable 1.0 were changed after it was installed: "
        "module_0.py, module_1.py, module_2.py, module_3.py, module_4.py and 2 more"
    )
