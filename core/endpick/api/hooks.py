"""Host hooks (pluggy): start, reload, stop and the command line. Never on the request path.

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
    import click
    from prometheus_client.registry import CollectorRegistry

PROJECT_NAME = "endpick"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)
"""Marks a method of a hook object; import it from `endpick.api`."""

Document = Mapping[str, JSONValue]
"""A configuration as plain data."""


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """A loaded plugin type."""

    type: str
    kinds: tuple[str, ...]
    distribution: str
    version: str
    load_seconds: float


@dataclass(slots=True)
class HostServices:
    """What the host passes to plugins; `endpick_configure` may replace it.

    Attributes:
        clock: Monotonic seconds.
        registry: The metrics registry; None without a metrics server.
    """

    clock: Callable[[], float]
    registry: CollectorRegistry | None = None


@dataclass(frozen=True, slots=True)
class HostView:
    """The running host.

    Attributes:
        config: The configuration being served.
        instances: Plugin objects by instance name.
    """

    config: Document
    instances: Mapping[str, Plugin[Parameters]]


class ConfigReport(Protocol):
    """Collects the findings of `endpick_validate`. Paths start at the root of the document: `("plugins", 0, "parameters")`."""

    def error(self, path: tuple[str | int, ...], message: str, help: str | None = None) -> None:  # noqa: A002
        """Refuse the configuration because of the value at `path`, or its nearest existing ancestor."""

    def warn(self, path: tuple[str | int, ...], message: str, help: str | None = None) -> None:  # noqa: A002
        """Warn about the value at `path`."""

    def position(self, path: tuple[str | int, ...]) -> tuple[int, int]:
        """Line and column of a value, counted from 1."""


class HookSpecs:
    """All hooks."""

    @hookspec
    def endpick_register(self) -> Mapping[str, type[Plugin[Parameters]]]:
        """Offer plugin types without entry points: a class by type name.

        Called before each plan. A clash of types is an error. Each class must be importable by name.
        """
        raise NotImplementedError

    @hookspec
    def endpick_plugin_loaded(self, record: PluginRecord) -> None:
        """Called once per type and plan, after the type passed every check."""

    @hookspec
    def endpick_validate(self, config: Document, report: ConfigReport) -> None:
        """Check a configuration, after the host's own checks passed."""

    @hookspec
    def endpick_configure(self, services: HostServices) -> None:
        """Wrap or replace services for plugins. Called once, before the first instance is built."""

    @hookspec
    def endpick_startup(self, host: HostView) -> Awaitable[None] | None:
        """Called after the instances started, before serving. May be `async def`. Exceptions end start-up."""

    @hookspec
    def endpick_shutdown(self, host: HostView) -> Awaitable[None] | None:
        """Called after serving, before the instances stop. May be `async def`."""

    @hookspec
    def endpick_config_reload(self, old: Document, new: Document) -> Awaitable[None] | None:
        """Called before a new configuration, already built, replaces the old one. May be `async def`. ReloadRejected vetoes it."""

    @hookspec
    def endpick_add_commands(self, group: click.Group) -> None:
        """Add verbs with `group.add_command`. Called for an unknown verb if `ENDPICK_CONFIG` names a configuration with this object."""

    @hookspec
    def endpick_decision(self, record: Document) -> None:
        """Observe a decision, when its request has ended or was refused.

        Called in a separate thread with a sample of the decisions (`--decision-sampling`) and all errors. Up to 256 records wait; more are
        dropped.
        `endpick schema decision` describes a record.
        """
