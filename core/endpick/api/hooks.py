"""Host hooks (pluggy): start, reload and stop. Never on the request path.

A hook object is an entry point of group `endpick.hooks.v1`: a module, an object, or a class that is called without arguments. Objects named
under `hooks:` are called in that order, for `endpick_shutdown` in reverse, even if another one fails. A reload creates new objects for its
plan; the objects from the start keep watching.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pluggy

from endpick.api.plugin import Parameters, Plugin
from endpick.api.request import JSONValue

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

PROJECT_NAME = "endpick"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)
"""Marks a method of a hook object as an implementation of the hook with its name; import it from `endpick.api`."""

Document = Mapping[str, JSONValue]
"""A configuration, or a decision record, as plain data."""


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """A loaded plugin type, passed to `endpick_plugin_loaded`.

    Attributes:
        type: Name of the type, as in `type:` of a configuration.
        kinds: Names of its kinds, such as `scorer`.
        distribution: Distribution that provides the class.
        version: Version of the distribution.
        load_seconds: Time of the import.
    """

    type: str
    kinds: tuple[str, ...]
    distribution: str
    version: str
    load_seconds: float


@dataclass(slots=True)
class HostServices:
    """The services that the host passes to plugins; `endpick_configure` may replace them.

    Attributes:
        clock: Monotonic seconds.
        registry: The metrics registry; None without a metrics server.
    """

    clock: Callable[[], float]
    registry: CollectorRegistry | None = None


@dataclass(frozen=True, slots=True)
class HostView:
    """The running host, passed to `endpick_startup` and `endpick_shutdown`.

    Attributes:
        config: The configuration being served.
        instances: Plugin objects by instance name.
    """

    config: Document
    instances: Mapping[str, Plugin[Parameters]]


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


class HookSpecs:
    """All hooks that a hook object may implement."""

    @hookspec
    def endpick_register(self) -> Mapping[str, type[Plugin[Parameters]]]:
        """Offer plugin types without entry points: a class by type name.

        The host calls it before each plan. A clash of types is an error. Each class must be importable by name.
        """
        raise NotImplementedError

    @hookspec
    def endpick_plugin_loaded(self, record: PluginRecord) -> None:
        """Observe a loaded plugin type.

        The host calls it once per type and plan, after the type passed every check. It logs exceptions.
        """

    @hookspec
    def endpick_validate(self, config: Document, report: ConfigReport) -> None:
        """Check a configuration, and report findings to `report`.

        The host calls it after its own checks passed. An exception refuses the configuration.
        """

    @hookspec
    def endpick_configure(self, services: HostServices) -> None:
        """Wrap or replace services for plugins, in place.

        The host calls it once, before it builds the first instance. An exception ends start-up.
        """

    @hookspec
    def endpick_startup(self, host: HostView) -> Awaitable[None] | None:
        """Act before serving begins. May be `async def`.

        The host calls it after the instances started. An exception ends start-up.
        """

    @hookspec
    def endpick_shutdown(self, host: HostView) -> Awaitable[None] | None:
        """Act after serving has ended. May be `async def`.

        The host calls it before the instances stop, hook objects in reverse order. It reports exceptions and goes on.
        """

    @hookspec
    def endpick_config_reload(self, old: Document, new: Document) -> Awaitable[None] | None:
        """Accept a new configuration, or veto it with ReloadRejected. May be `async def`.

        The host calls it after it built the new instances, and before they replace the old ones. Any exception is a veto: the old
        configuration keeps serving.
        """

    @hookspec
    def endpick_decision(self, record: Document) -> None:
        """Observe a decision, when its request has ended or was refused.

        The host calls it in a separate thread with a sample of the decisions (`--decision-sampling`) and all errors. Up to 256 records
        wait; more are dropped. `endpick schema decision` describes a record.
        """
