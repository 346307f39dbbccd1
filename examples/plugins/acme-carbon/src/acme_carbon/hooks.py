"""Hooks: a page of endpick's admin API with the latest reports, and a check for `endpick doctor`."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Mapping

from endpick.api import hookimpl
from endpick.api.hooks import AdminPages, DoctorReport, HostView
from endpick.api.request import JSONValue
from pydantic import ValidationError

from acme_carbon.source import REPORT, CarbonSource

URL_VARIABLE = "ACME_CARBON_URL"
TIMEOUT_SECONDS = 5.0


class CarbonHooks:
    """endpick calls these methods wherever acme-carbon is installed."""

    def __init__(self) -> None:
        self._sources: Mapping[str, CarbonSource] = {}

    @hookimpl
    def endpick_started(self, host: HostView) -> None:
        """Remember the sources that the configuration defines."""
        self._sources = {name: plugin for name, plugin in host.instances.items() if isinstance(plugin, CarbonSource)}

    @hookimpl
    def endpick_reloaded(self, host: HostView) -> None:
        """Remember the sources of the new configuration."""
        self.endpick_started(host)

    @hookimpl
    def endpick_admin_pages(self, pages: AdminPages) -> None:
        """Add the page."""
        pages.add("/acme/carbon", "The latest carbon report of each source; null before the first.", self._reports)

    @hookimpl
    def endpick_doctor(self, report: DoctorReport) -> None:
        """Ask the service at `ACME_CARBON_URL`, if that is set."""
        url = os.environ.get(URL_VARIABLE, "")
        if not url:
            return
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - the operator's own URL
                zones = REPORT.validate_json(answer.read()).zones
        except (OSError, ValueError, ValidationError) as problem:
            report.error(
                f"no carbon report from {url}: {problem}", help=f"correct {URL_VARIABLE}, or the service there"
            )
            return
        if not zones:
            report.warn(f"the carbon report of {url} knows no zone", help="look at the service there")

    def _reports(self) -> JSONValue:
        latest = {name: source.latest for name, source in self._sources.items()}
        return {name: None if report is None else dict(report.zones) for name, report in latest.items()}
