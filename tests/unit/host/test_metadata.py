"""Reading package metadata, also where it is stale, empty or odd."""

from __future__ import annotations

import json

import pytest

from endpick.diagnostics import Code
from endpick.host.discovery import discover
from endpick.host.health import examine
from endpick.host.metadata import effective, normalise, read_all, read_relevant


@pytest.mark.parametrize(("name", "normal"), [("Good_Scorers", "good-scorers"), ("a.b--c__d", "a-b-c-d"), ("plain", "plain")])
def test_all_spellings_of_a_name_are_equal(name, normal):
    assert normalise(name) == normal


def test_only_the_header_of_metadata_is_read(make_distribution):
    (metadata,) = read_all([str(make_distribution("good-scorers", {"a.b": "m:C"}, requires=("numpy>=2", "click; extra == 'x'")))])

    assert (metadata.name, metadata.version) == ("good-scorers", "1.0"), "its description has a line 'Name: not-the-name'"
    assert metadata.requires == ("numpy>=2", "click; extra == 'x'")
    assert [(entry_point.group, entry_point.name) for entry_point in metadata.entry_points] == [("endpick.plugins.v1", "a.b")]
    assert not metadata.is_empty


def test_distributions_without_our_entry_points_are_left_out(make_distribution, tmp_path):
    site = tmp_path / "site"
    make_distribution("ours", {"a.b": "m:C"}, root=site)
    make_distribution("theirs", {"run": "n:main"}, group="console_scripts", root=site)

    assert [metadata.name for metadata in read_relevant("endpick.", [str(site)])] == ["ours"]
    assert sorted(metadata.name for metadata in read_all([str(site)])) == ["ours", "theirs"]


def test_a_copy_without_entry_points_is_relevant_when_another_copy_has_some(make_distribution):
    old = make_distribution("twice", {}, modules={})
    new = make_distribution("twice", {"a.b": "m:C"}, version="2.0")

    assert [metadata.version for metadata in read_relevant("endpick.", [str(old), str(new)])] == ["1.0", "2.0"]


def test_the_first_copy_that_is_not_empty_counts(make_distribution, tmp_path):
    empty = tmp_path / "empty"
    (empty / "twice-0.1.dist-info").mkdir(parents=True)
    first = make_distribution("twice", {"a.b": "m:C"})
    second = make_distribution("twice", {"a.b": "m:C"}, version="2.0")

    copies = read_all([str(empty), str(first), str(second)])

    assert copies[0].is_empty
    assert copies[0].key == "twice", "known from the directory's name"
    assert {key: metadata.version for key, metadata in effective(copies).items()} == {"twice": "1.0"}


@pytest.mark.parametrize(
    ("direct_url", "source_path"),
    [
        (json.dumps({"url": "file:///src/my%20plugin", "dir_info": {"editable": True}}), "/src/my plugin"),
        (json.dumps({"url": "file:///src/plugin", "dir_info": {}}), ""),
        (json.dumps({"url": "https://host/plugin.whl", "archive_info": {}}), ""),
        ("not json", ""),
        ("[]", ""),
    ],
)
def test_only_editable_installs_have_a_source(make_distribution, direct_url, source_path):
    root = make_distribution("editable", {"a.b": "m:C"})
    (root / "editable-1.0.dist-info" / "direct_url.json").write_text(direct_url)

    (metadata,) = read_all([str(root)])

    assert metadata.source_path == source_path


def test_a_directory_that_does_not_exist_holds_nothing(tmp_path):
    assert read_all([str(tmp_path / "nowhere")]) == ()


@pytest.mark.parametrize(
    "direct_url",
    [
        '{"dir_info": [1], "url": "file:///src"}',
        '{"dir_info": {"editable": true}, "url": 7}',
        '{"dir_info": {"editable": true}, "url": "file://[x"}',
        '{"dir_info": {"editable": true}, "url": "file:///a%00b"}',
        '{"dir_info": {"editable": true}, "url": "file:///\\ud800"}',
        "[" * 200_000,
    ],
)
def test_a_direct_url_that_makes_no_sense_is_that_of_no_editable_install(make_distribution, direct_url):
    site = make_distribution("odd", {"a.b": "m:C"})
    (site / "odd-1.0.dist-info" / "direct_url.json").write_text(direct_url)

    (metadata,) = read_all([str(site)])

    assert metadata.source_path == ""


@pytest.mark.parametrize("content", [b"[endpick.plugins.v1]\na.b m:C\n", b"[endpick.plugins.v1]\na.b = m:\xff\n"], ids=["no =", "no text"])
def test_entry_points_that_cannot_be_read_are_told_and_no_others_suffer(make_distribution, tmp_path, content):
    site = make_distribution("good", {"a.good": "m:C"}, root=tmp_path / "site")
    make_distribution("odd", {"a.b": "n:C"}, root=site)
    (site / "odd-1.0.dist-info" / "entry_points.txt").write_bytes(content)

    assert [candidate.type for candidate in discover([str(site)])] == ["a.good"]
    (found,) = [one for one in examine([str(site)]).diagnostics if one.code is Code.E0805]
    assert found.message.startswith("the entry points of odd 1.0 cannot be read, so it offers nothing: ")


def test_a_group_with_a_number_of_thousands_of_digits_is_not_ours(make_distribution):
    site = make_distribution("odd", {"a.b": "m:C"}, group=f"endpick.plugins.v{'9' * 5000}")

    assert discover([str(site)]) == ()


def test_metadata_that_is_no_text_is_read_with_replacements(make_distribution):
    site = make_distribution("odd", {"a.b": "m:C"})
    (site / "odd-1.0.dist-info" / "METADATA").write_bytes(b"Name: odd\nVersion: 1\xff\n")

    (metadata,) = read_all([str(site)])

    assert (metadata.name, metadata.version) == ("odd", "1\ufffd")
