"""What discovery makes of metadata."""

from __future__ import annotations

import json
import sys

import endpick
from endpick.host.discovery import Candidate, discover, find


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
    for number, group in enumerate(["endpick.plugins.v2", "endpick.plugins.v10", "endpick.plugins.vX", "endpick.host", "endpick.hooks.v1"]):
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


def test_only_the_endpick_that_runs_is_builtin(make_distribution):
    fake = make_distribution("endpick", {"acme.fake": "fake:Fake"}, version="9.9")

    everything = discover([str(fake), *sys.path])

    assert {one.distribution for one in everything if one.is_builtin} == {"endpick"}
    assert all(one.target.startswith("endpick_builtin.") for one in everything if one.is_builtin)
    (shadowed,) = (one for one in everything if one.type == "acme.fake")
    assert not shadowed.is_builtin
    assert shadowed.shadowed_by, "although it comes first on the path"


def test_a_wheel_is_endpick_when_it_lies_beside_the_code_and_lists_it(make_distribution, tmp_path, monkeypatch):
    root = make_distribution("endpick", {"queue-scorer": "fake:Fake"}, modules={"endpick.__init__": ""}, root=tmp_path / "site")
    monkeypatch.setattr(endpick, "__file__", str(root / "endpick" / "__init__.py"))

    assert [one.is_builtin for one in found(root)] == [True]
    (root / "endpick-1.0.dist-info" / "RECORD").write_text("fake.py,sha256=x,1\n")
    assert [one.is_builtin for one in found(root)] == [False]


def test_of_two_that_both_could_be_endpick_none_is(make_distribution, tmp_path, monkeypatch):
    for version in ("1.0", "9.9"):
        root = make_distribution(
            "endpick", {f"acme.v{version[0]}": "m:C"}, version=version, modules={"endpick.__init__": ""}, root=tmp_path / "site"
        )
    monkeypatch.setattr(endpick, "__file__", str(root / "endpick" / "__init__.py"))

    candidates = found(root)

    assert not any(one.is_builtin for one in candidates)
    assert all(one.rivals for one in candidates)


def test_every_metadata_directory_that_bears_the_name_is_a_rival(make_distribution, tmp_path):
    ours = make_distribution("acme-x", {"acme.a": "m:A"}, modules={})
    hooks_only = make_distribution("Acme.X", {"hook": "m:H"}, version="2.0", group="endpick.hooks.v1", modules={})
    disguised = make_distribution("harmless", {"acme.b": "m:B"}, modules={})
    metadata = disguised / "harmless-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("Name: harmless", "Name: acme_x"))

    (candidate,) = found(ours, hooks_only, disguised, types=["acme.a"])

    assert candidate.rivals == (f"{hooks_only}/Acme.X-2.0.dist-info", f"{disguised}/harmless-1.0.dist-info")


def test_the_same_directory_by_another_path_is_no_rival(make_distribution, tmp_path):
    root = make_distribution("acme-x", {"acme.a": "m:A"}, modules={})
    (tmp_path / "again").symlink_to(root)

    (candidate,) = found(root, tmp_path / "again")

    assert candidate.rivals == ()


def test_what_a_build_left_in_the_source_of_an_editable_install_is_no_rival(make_distribution, tmp_path):
    site = make_distribution("acme-x", {"acme.a": "m:A"}, modules={}, root=tmp_path / "site")
    project = make_distribution("acme-x", {"acme.a": "m:A"}, root=tmp_path / "project", egg_info=True, modules={})
    (site / "acme_x-1.0.dist-info" / "direct_url.json").write_text(json.dumps({"url": f"file://{project}", "dir_info": {"editable": True}}))

    (candidate,) = found(site, project)

    assert candidate.rivals == ()


def test_a_metadata_directory_under_another_name_than_its_own_is_not_sure(make_distribution, tmp_path):
    root = make_distribution("harmless", {"acme.b": "m:B"}, modules={})
    metadata = root / "harmless-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("Name: harmless", "Name: acme_x"))

    (candidate,) = found(root)

    assert candidate.rivals == (f"{root}/harmless-1.0.dist-info",)
