"""Findings of `endpick doctor`."""

from __future__ import annotations

import pytest

from endpick.cli.doctor_checks import CHECKS, Environment, examine
from endpick.diagnostics import Code
from endpick.host.discovery import import_place

ENTRY_POINTS = {"acme.scorer": "healthy:Scorer"}


@pytest.fixture
def examined(monkeypatch):
    """`examined(root, …)`: the findings about an environment that consists of these directories."""

    def look(*roots):
        for root in reversed(roots):
            monkeypatch.syspath_prepend(root)
        return examine(Environment.at([str(root) for root in roots]))

    return look


def findings(diagnostics):
    return [(finding.code, finding.message) for finding in diagnostics]


def test_sound_environment_has_no_findings(make_distribution, examined):
    root = make_distribution("healthy", ENTRY_POINTS)

    assert examined(root) == ()
    assert [copy.name for copy in Environment.at([str(root)]).copies] == ["healthy"]
    assert import_place("healthy") == f"{root}/healthy.py"


def test_empty_metadata_directory_is_reported(make_distribution, examined, tmp_path):
    leftover = tmp_path / "other" / "healthy-0.1.dist-info"
    leftover.mkdir(parents=True)
    root = make_distribution("healthy", ENTRY_POINTS)

    (finding,) = examined(leftover.parent, root)

    assert (finding.code, finding.help) == (Code.W0302, f"remove it: `rm -r {leftover}`")
    assert finding.notes == (f"healthy 1.0 at {root}/healthy-1.0.dist-info is used",)


def test_second_version_is_reported(make_distribution, examined):
    first, second = make_distribution("healthy", ENTRY_POINTS), make_distribution("healthy", ENTRY_POINTS, version="2.0")

    (finding,) = examined(first, second)

    assert finding.message == "healthy 1.0 shadows healthy 2.0, and the code may be of either"
    assert finding.notes == (
        f"healthy 1.0 at {first}/healthy-1.0.dist-info is used",
        f"healthy 2.0 at {second}/healthy-2.0.dist-info is ignored",
        f"Python imports 'healthy' from {first}/healthy.py",
    )


def test_same_version_twice_is_reported(make_distribution, examined, tmp_path):
    first = make_distribution("healthy", ENTRY_POINTS)
    second = make_distribution("healthy", ENTRY_POINTS, root=tmp_path / "second")
    link = tmp_path / "link"
    link.symlink_to(first)

    assert findings(examined(first, second)) == [(Code.W0302, "healthy has metadata in two places")]
    assert findings(examined(first, link)) == []


@pytest.mark.parametrize("group", ["endpick.host", "endpick.plugins.vX", "endpick.plugin.v1", "endpick.hooks"])
def test_unknown_group_is_reported(make_distribution, examined, group):
    (finding,) = examined(make_distribution("healthy", ENTRY_POINTS, group=group))

    assert finding.code is Code.E0805
    assert finding.message == f"healthy 1.0 has entry points in the group '{group}', which endpick does not read"
    assert finding.help == "its author may mean 'endpick.plugins.v1' or 'endpick.hooks.v1' or 'endpick.verbs.v1'"


@pytest.mark.parametrize("group", ["endpick.verbs.v1", "other.group"])
def test_known_and_foreign_groups_pass(make_distribution, examined, group):
    assert findings(examined(make_distribution("healthy", ENTRY_POINTS, group=group))) == []


def test_unmet_requirement_is_reported(make_distribution, examined):
    root = make_distribution("healthy", ENTRY_POINTS, requires=("never-published-by-anybody", "click>=99; extra == 'x'"))

    assert findings(examined(root)) == [
        (Code.E0317, "requirements of healthy 1.0 are not met: never-published-by-anybody is not installed")
    ]


def test_clash_is_a_warning_with_all_offers(make_distribution, examined):
    one, two = make_distribution("healthy", ENTRY_POINTS), make_distribution("rival", {"acme.scorer": "rival:Scorer"})

    (finding,) = examined(one, two)

    assert (finding.code, finding.message) == (Code.W0305, "2 distributions offer the type 'acme.scorer'")
    assert [note.split()[0] for note in finding.notes] == ["healthy", "rival"]
    assert finding.plugin.type == "acme.scorer"


def test_unusable_types_are_reported(make_distribution, examined):
    odd = make_distribution("odd", {"Odd_Name": "odd:Scorer"})
    future = make_distribution("future", {"future.scorer": "future:Scorer"}, group="endpick.plugins.v2")

    assert [code for code, _ in findings(examined(odd, future))] == [Code.E0302, Code.E0322]


def test_missing_module_is_reported_without_import(make_distribution, examined):
    root = make_distribution("healthy", {"acme.gone": "gone:Scorer", "acme.deep": "healthy.deep:Scorer"}, modules={"healthy": "1 / 0"})

    assert findings(examined(root)) == [
        (Code.E0303, "the entry point of 'acme.deep' in healthy 1.0 leads to healthy.deep:Scorer, and there is no such module"),
        (Code.E0303, "the entry point of 'acme.gone' in healthy 1.0 leads to gone:Scorer, and there is no such module"),
    ]


def test_hook_object_that_cannot_be_loaded_is_reported(installed_hooks, examined):
    (finding,) = examined(*installed_hooks("hooks.missing"))

    assert (finding.code, finding.plugin.type) == (Code.E0705, "hooks.missing")


def test_hook_objects_have_checks_of_their_own(installed_hooks, examined):
    warning, error, last, failure = examined(*installed_hooks("hooks.everything", "hooks.faulty"))

    assert (warning.code, warning.message, warning.help) == (Code.W0802, "the trace is kept for ever", "remove trace.jsonl")
    assert (error.code, error.message, error.notes) == (
        Code.E0811,
        "the moon is missing",
        ("said by the hook object 'hooks.everything' from watchers 1.0",),
    )
    assert (last.code, failure.code) == (Code.W0802, Code.E0705)
    assert failure.message.endswith("failed in endpick_doctor: RuntimeError: cannot examine")


def test_a_check_that_fails_leaves_the_others(make_distribution, examined, monkeypatch):
    def broken(_):
        raise OSError("no such disk")

    monkeypatch.setitem(CHECKS, "shadowed-copies", broken)

    clash, failure = examined(make_distribution("odd", {"Odd_Name": "odd:Scorer"}))

    assert (clash.code, failure.message.rpartition(": ")[2]) == (Code.E0302, "no such disk")


def test_changed_files_are_reported_once(make_distribution, examined):
    root = make_distribution("healthy", {"acme.a": "healthy:A", "acme.b": "healthy:B"})
    (root / "healthy.py").write_text("# changed\n")

    assert findings(examined(root)) == [(Code.W0310, "files of healthy 1.0 were changed after it was installed: healthy.py")]
