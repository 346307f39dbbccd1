"""Host hooks (pluggy): start, reload, decisions and stop. Never on the request path.

A hook object is an entry point of group `endpick.hooks.v1`: a module, an object, or a class that is called without arguments. endpick loads
every installed hook object that `pluginPolicy` and the lock file allow; `pluginPolicy.denyTypes` leaves out objects by name. endpick's own
features implement the same hooks.

Objects are called by name, after endpick's own, and for `endpick_stopping` in reverse, even if another one fails. `tryfirst`, `trylast` and
wrappers work as in pluggy. Hooks have no results, so a wrapper needs to return nothing; it does not wait for `async def` implementations,
which are awaited afterwards, one by one. An implementation may take fewer arguments than its hook has. Objects live as long as the process:
a reload keeps them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

from endpick.api.plugin import Plugin
from endpick.api.request import JSONValue

if TYPE_CHECKING:
    from prometheus_client.registry import Collector, CollectorRegistry

PROJECT_NAME = "endpick"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)
"""Marks a method of a hook object as an implementation of the hook with its name; import it from `endpick.api`."""

Document = Mapping[str, JSONValue]
"""A configuration, or a decision record, as plain data."""


@dataclass(slots=True)
class HostServices:
    """The services of the host; `endpick_configure` may change them.

    Attributes:
        clock: Monotonic seconds, for the host and all plugins.
        registry: Collectors for `/metrics`; None without a metrics server.
        metrics_filters: Change the page of `/metrics`. At each scrape, each filter in turn gets a collector of all families, and returns
            another one. The host leaves out a filter that raises.
    """

    clock: Callable[[], float]
    registry: CollectorRegistry | None = None
    metrics_filters: list[Callable[[Collector], Collector]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class HostView:
    """The running host.

    Attributes:
        config: The configuration being served.
        instances: Plugin objects by instance name.
    """

    config: Document
    instances: Mapping[str, Plugin[Any]]


class ConfigReport(Protocol):
    """Collects the findings of `endpick_validate`.

    Paths start at the root of the document: `("plugins", 0, "parameters")`.
    """

    def error(self, path: tuple[str | int, ...], message: str, help: str | None = None) -> None:  # noqa: A002
        """Refuse the configuration because of the value at `path`, or its nearest existing ancestor.

        The host reports diagnostic E0511 with the message and the help line.
        """

    def warn(self, path: tuple[str | int, ...], message: str, help: str | None = None) -> None:  # noqa: A002
        """Warn about the value at `path`, or its nearest existing ancestor.

        The host reports diagnostic W0503 with the message and the help line.
        """

    def position(self, path: tuple[str | int, ...]) -> tuple[int, int]:
        """Return the line and column of the value at `path`, counted from 1."""


class AdminPages(Protocol):
    """Collects the pages of `endpick_admin_pages`."""

    def add(self, path: str, summary: str, answer: Callable[[], JSONValue]) -> None:
        """Answer GET requests for `path`, such as `/acme/budget`, with JSON on the metrics port.

        Clients need the same access as for the other pages of the admin API, and find path and summary in `/openapi.json`. The host calls
        `answer` in a thread, for one client at a time; an exception answers status 500. A path that is taken is reported and ignored.
        """


class DoctorReport(Protocol):
    """Collects the findings of `endpick_doctor`."""

    def error(self, message: str, help: str | None = None) -> None:  # noqa: A002
        """Report a fault of the environment, as diagnostic E0811."""

    def warn(self, message: str, help: str | None = None) -> None:  # noqa: A002
        """Warn about the environment, as diagnostic W0802."""


class HookSpecs:
    """All hooks that a hook object may implement."""

    @hookspec
    def endpick_configure(self, services: HostServices) -> None:
        """Change the host's services: replace the clock, register metrics, filter the page of `/metrics`.

        The host calls it once per process, before it builds the first instance. An exception ends the start.
        """

    @hookspec
    def endpick_validate(self, config: Document, report: ConfigReport) -> None:
        """Check a configuration, and report findings to `report`.

        The host calls it after its own checks passed. An exception refuses the configuration.
        """

    @hookspec
    def endpick_started(self, host: HostView) -> Awaitable[None] | None:
        """Act once all instances run, before the first request. May be `async def`.

        An exception ends the start.
        """

    @hookspec
    def endpick_reloaded(self, host: HostView) -> Awaitable[None] | None:
        """Act once another configuration serves. May be `async def`.

        Exceptions are logged and counted.
        """

    @hookspec
    def endpick_decided(self, record: Document) -> None:
        """Observe a decision, when its request has ended or was refused.

        The host calls it in a thread of its own with a sample of the decisions (`--decision-sampling`) and all errors. Up to 256 records
        wait; more are dropped. Exceptions are logged and counted. `endpick schema decision` describes a record.
        """

    @hookspec
    def endpick_stopping(self, host: HostView) -> Awaitable[None] | None:
        """Act after the last request, before instances stop. May be `async def`.

        The host calls it in reverse order, also if `endpick_started` failed. Exceptions are logged and counted.
        """

    @hookspec
    def endpick_admin_pages(self, pages: AdminPages) -> None:
        """Add pages to the admin API.

        The host calls it once, before it opens the metrics port. Exceptions are logged and counted.
        """

    @hookspec
    def endpick_doctor(self, report: DoctorReport) -> None:
        """Check the environment for `endpick doctor`, and report findings to `report`."""
