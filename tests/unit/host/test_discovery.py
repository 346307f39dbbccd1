"""Candidates found in package metadata."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.host.discovery import TYPE_PATTERN, Candidate, discover, discover_hook_objects, find, is_valid_type, summary_of


def found(*roots):
    return list(discover([str(root) for root in roots]))


def test_each_entry_point_is_a_candidate(make_distribution):
    root = make_distribution("acme-x", {"acme.b": "acme_x:B", "acme.a": "acme_x:A [extra]"})

    assert found(root) == [
        Candidate("acme.a", 1, "acme-x", "1.0", "acme_x:A [extra]", f"{root}/acme_x-1.0.dist-info"),
        Candidate("acme.b", 1, "acme-x", "1.0", "acme_x:B", f"{root}/acme_x-1.0.dist-info"),
    ]


def test_group_decides_the_api_major(make_distribution, tmp_path):
    site = tmp_path / "site"
    for number, group in enumerate(["endpick.plugins.v2", "endpick.plugins.v10", "endpick.plugins.vX", "endpick.host", "endpick.hooks.v1"]):
        make_distribution(f"dist-{number}", {f"type.n{number}": "m:C"}, group=group, modules={}, root=site)

    assert [(candidate.type, candidate.api_major, candidate.speaks_our_api) for candidate in found(site)] == [
        ("type.n0", 2, False),
        ("type.n1", 10, False),
    ]
    assert [one.type for one in discover_hook_objects([str(site)])] == ["type.n4"]


def test_first_copy_of_a_distribution_counts(make_distribution):
    first = make_distribution("twice", {"a.b": "m:Old"})
    second = make_distribution("Twice", {"a.b": "m:New", "a.c": "m:Other"}, version="2.0")

    assert [(one.type, one.target, one.version) for one in found(first, second)] == [("a.b", "m:Old", "1.0")]


def test_editable_install_has_a_source_path(make_distribution):
    root = make_distribution("eggy", {"a.b": "m:C"})
    (root / "eggy-1.0.dist-info" / "direct_url.json").write_text('{"url": "file:///src/my%20eggy", "dir_info": {"editable": true}}')

    (candidate,) = found(root)

    assert candidate.source_path == "/src/my eggy"


def test_endpick_is_builtin():
    everything = discover()

    assert {one.distribution for one in everything if one.is_builtin} == {"endpick"}
    assert all(one.target.startswith("endpick_builtin.") for one in everything if one.is_builtin)


def test_find_skips_invalid_names_and_other_majors():
    ours = Candidate("a.b", 1, "acme", "1.0", "m:C", "/p")
    others = [Candidate("a.b", 2, "next", "1.0", "m:C", "/q"), Candidate("A_B", 1, "odd", "1.0", "m:C", "/r")]

    assert find([ours, *others], "a.b") == (ours,)
    assert find(others, "A_B") == ()


def test_malformed_type_is_invalid():
    for name in ["", "Queue", "queue_scorer", "-a", "a-", "a--b", ".a", "1a", "a b", "ä", "a\n", "queue-\u0455corer"]:
        assert not is_valid_type(name)


@given(st.from_regex(rf"\A{TYPE_PATTERN}\Z"))
def test_valid_type_is_lower_case_ascii(name):
    assert is_valid_type(name)
    assert re.fullmatch(r"[a-z0-9.-]+", name)


@pytest.mark.parametrize(
    ("source", "summary"),
    [
        ('class Plugin(Base):\n    """First line.\n\n    More.\n    """\n', "First line."),
        ('class Plugin(\n    Base,\n    Other,\n):\n\n    r"""Says "yes" at once."""\n', 'Says "yes" at once.'),
        ('class Plugin:\r\n    """First line.\r\n    """\r\n', "First line."),
        ('class Plugin:  # a note: this\n    """First line."""\n', "First line."),
        ('class Plugin:\n    """\n    Second line.\n    """\n', "Second line."),
        ('class Plugin:\n    "In \\"single\\" quotes."\n', 'In "single" quotes.'),
        ('class Plugin:\n    def f(self):\n        """Of the method."""\n', ""),
        ('class Plugin:\n    """ """\n', ""),
        ('class Other:\n    """First line."""\n', ""),
        ("class Plugin:\n", ""),
    ],
)
def test_summary_is_the_first_line_of_the_docstring(tmp_path, monkeypatch, source, summary):
    module = f"summarised_{abs(hash(source))}"
    (tmp_path / f"{module}.py").write_bytes(source.encode())
    monkeypatch.syspath_prepend(tmp_path)

    assert summary_of(Candidate("acme.a", 1, "acme-x", "1.0", f"{module}:Plugin [extra]", "")) == summary
    assert module not in sys.modules


def test_summary_is_empty_without_the_source():
    assert summary_of(Candidate("acme.a", 1, "acme-x", "1.0", "no_such_module:Plugin", "")) == ""
