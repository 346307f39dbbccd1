"""Whether requirements are met by what is installed here."""

from __future__ import annotations

from importlib import metadata

from endpick.host.discovery import requirements_of, unmet_requirements

CLICK = metadata.version("click")


def test_met_and_inapplicable_requirements_pass():
    for requirement in [
        "click",
        f"click=={CLICK}",
        "click>=1",
        "Click>=1",
        "click>=99; extra == 'x'",
        "nowhere; python_version < '3'",
        "click[colors]>=1",
    ]:
        assert unmet_requirements([requirement]) == ()


def test_unmet_requirement_is_reported():
    for requirement, sentence in [
        ("click>=99,<100", f"click<100,>=99 is needed, click {CLICK} is installed"),
        ("never-published-by-anybody", "never-published-by-anybody is not installed"),
        ("never-published-by-anybody>=2; python_version >= '3'", "never-published-by-anybody>=2 is not installed"),
    ]:
        assert list(map(str, unmet_requirements(["click", requirement]))) == [sentence]


def test_requirements_of_installed_distribution():
    assert any(line.startswith("click") for line in requirements_of("endpick"))
    assert requirements_of("never-published-by-anybody") == ()


def test_unreadable_version_passes(make_distribution, monkeypatch):
    monkeypatch.syspath_prepend(make_distribution("odd", version="of-yesterday"))

    assert unmet_requirements(["odd>=1"]) == ()


def test_prerelease_meets_a_requirement(make_distribution, monkeypatch):
    monkeypatch.syspath_prepend(make_distribution("early", version="2.0b1"))

    assert unmet_requirements(["early>=1"]) == ()
    (unmet,) = unmet_requirements(["Early>=2"])
    assert (unmet.distribution, unmet.requirement, unmet.installed) == ("early", "Early>=2", "2.0b1")
    assert str(unmet) == "Early>=2 is needed, early 2.0b1 is installed"
