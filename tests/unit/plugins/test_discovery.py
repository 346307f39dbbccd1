"""What discovery makes of metadata."""

from __future__ import annotations

from endpick.plugins.discovery import Candidate, discover, find


def found(*roots, types=None):
    return [candidate for candidate in discover([str(root) for root in roots]) if types is None or candidate.type in types]


def test_each_entry_point_of_our_groups_is_a_candidate(make_distribution):
    root = make_distribution("acme-x", {"acme.b": "acme_x:B", "acme.a": "acme_x:A [extra]"})

    assert found(root) == [
        Candidate("acme.a", 1, "acme-x", "1.0", "acme_x:A [extra]", f"{root}/acme_x-1.0.dist-info"),
        Candidate("acme.b", 1, "acme-x", "1.0", "acme_x:B", f"{root}/acme_x-1.0.dist-info"),
    ]


def test_groups_of_other_majors_are_seen_and_other_groups_are_not(make_distribution, tmp_path):
    site = tmp_path / "site"
    for number, group in enumerate(
        ["endpick.plugins.v2", "endpick.plugins.v10", "endpick.plugins.vX", "endpick.plugins", "endpick.hooks.v1"]
    ):
        make_distribution(f"dist-{number}", {f"type.n{number}": "m:C"}, group=group, modules={}, root=site)

    assert [(candidate.type, candidate.api_major, candidate.speaks_our_api) for candidate in found(site)] == [
        ("type.n0", 2, False),
        ("type.n1", 10, False),
    ]


def test_the_same_target_in_two_copies_is_one_candidate_with_both_paths(make_distribution):
    first = make_distribution("twice", {"a.b": "m:C"})
    second = make_distribution("twice", {"a.b": "m:C"}, version="2.0")

    (candidate,) = found(first, second)

    assert candidate.version == "1.0"
    assert candidate.metadata_path == f"{first}/twice-1.0.dist-info"
    assert candidate.copies == (f"{second}/twice-2.0.dist-info",)
    assert candidate.shadowed_by == ""


def test_another_target_in_a_later_copy_is_shadowed(make_distribution):
    first = make_distribution("twice", {"a.b": "m:Old"})
    second = make_distribution("twice", {"a.b": "m:New", "a.c": "m:Other"}, version="2.0")

    candidates = found(first, second)

    assert {(one.type, one.target, bool(one.shadowed_by)) for one in candidates} == {
        ("a.b", "m:Old", False),
        ("a.b", "m:New", True),
        ("a.c", "m:Other", True),
    }
    assert [candidate.target for candidate in find(candidates, "a.b")] == ["m:Old"]
    assert find(candidates, "a.c") == ()


def test_an_editable_copy_makes_the_candidate_editable(make_distribution):
    root = make_distribution("eggy", {"a.b": "m:C"})
    other = make_distribution("eggy", {"a.b": "m:C"}, egg_info=True, root=root.parent / "source")
    (root / "eggy-1.0.dist-info" / "direct_url.json").write_text('{"url": "file:///src/eggy", "dir_info": {"editable": true}}')

    (candidate,) = found(other, root)

    assert candidate.metadata_path == f"{other}/eggy.egg-info"
    assert (candidate.editable, candidate.source_path) == (True, "/src/eggy")


def test_finding_skips_invalid_names_and_other_majors():
    ours = Candidate("a.b", 1, "acme", "1.0", "m:C", "/p")
    others = [Candidate("a.b", 2, "next", "1.0", "m:C", "/q"), Candidate("A_B", 1, "odd", "1.0", "m:C", "/r")]

    assert find([ours, *others], "a.b") == (ours,)
    assert find(others, "A_B") == ()


def test_only_endpick_itself_is_builtin():
    assert Candidate("a", 1, "Endpick", "1", "m:C", "/p").is_builtin
    assert not Candidate("a", 1, "endpick-extras", "1", "m:C", "/p").is_builtin
