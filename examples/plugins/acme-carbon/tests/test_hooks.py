"""What the hook object adds to endpick."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from endpick.api import PluginContext
from endpick.api.hooks import HostView
from endpick.api.request import JSONValue

from acme_carbon.hooks import URL_VARIABLE, CarbonHooks
from acme_carbon.source import CarbonReport, CarbonSource, CarbonSourceParameters


class Pages:
    """Keeps the added pages."""

    def __init__(self) -> None:
        self.added: dict[str, Callable[[], JSONValue]] = {}

    def add(self, path: str, summary: str, answer: Callable[[], JSONValue]) -> None:
        self.added[path] = answer


class Report:
    """Keeps the findings."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def error(self, message: str, help: str | None = None) -> None:  # noqa: A002
        self.found.append(f"error: {message}")

    def warn(self, message: str, help: str | None = None) -> None:  # noqa: A002
        self.found.append(f"warning: {message}")


def test_page_shows_the_latest_report_of_each_source() -> None:
    hooks, pages = CarbonHooks(), Pages()
    hooks.endpick_admin_pages(pages)
    source = CarbonSource("grid", CarbonSourceParameters(url="http://127.0.0.1:1/"), PluginContext())
    assert pages.added["/acme/carbon"]() == {}

    hooks.endpick_started(HostView({}, {"grid": source}))
    assert pages.added["/acme/carbon"]() == {"grid": None}
    source.latest = CarbonReport({"a": 300})
    assert pages.added["/acme/carbon"]() == {"grid": {"a": 300}}
    hooks.endpick_reloaded(HostView({}, {}))
    assert pages.added["/acme/carbon"]() == {}


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ({"zones": {"a": 300}}, ""),
        ({"zones": {}}, "warning: the carbon report of file:"),
        ([], "error: no carbon report from file:"),
    ],
)
def test_doctor_asks_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: JSONValue, found: str
) -> None:
    (tmp_path / "report.json").write_text(json.dumps(answer))
    monkeypatch.setenv(URL_VARIABLE, (tmp_path / "report.json").as_uri())
    report = Report()

    CarbonHooks().endpick_doctor(report)

    assert bool(report.found) is bool(found)
    assert "".join(report.found).startswith(found)


def test_doctor_finds_nothing_without_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    report = Report()
    CarbonHooks().endpick_doctor(report)
    assert report.found == []

    monkeypatch.setenv(URL_VARIABLE, (tmp_path / "missing.json").as_uri())
    CarbonHooks().endpick_doctor(report)
    assert "No such file" in report.found[0]
