"""Host hooks: what an extension object may do at the edges of the host's life (pluggy; never on the request path).

A hook object is an entry point of group `endpick.hooks.v1`: a module, an object, or a class that is called without arguments. It is
loaded only when a configuration names it under `hooks:`, before any plugin is. Its methods marked with `@hookimpl` may take fewer
arguments than specified here, but no others.

A reload makes a plan of its own, and of a class an object of its own: that one hears of the new plan (`endpick_register`,
`endpick_plugin_loaded`, `endpick_validate`), while the objects of the start are asked about the change and go on watching. What both
should know belongs into the module.

For each hook the objects are called in the order of `hooks:` (`endpick_shutdown` in the reverse order). `@hookimpl(tryfirst=True)` and
`trylast=True` move an implementation before or behind the others. Every object is called, whatever the others do.
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
"""Mark a method of a hook object: `@hookimpl`. Import it from `endpick.api`."""

Document = Mapping[str, JSONValue]
"""A configuration as it was written, as plain data."""


@dataclass(frozen=True, slots=True)
class PluginRecord:
    """A plugin type that has been loaded."""

    type: str
    kinds: tuple[str, ...]
    """Such as `scorer`."""
    distribution: str
    version: str
    load_seconds: float


@dataclass(slots=True)
class HostServices:
    """What the host gives to plugins; `endpick_configure` may replace any of it.

    Attributes:
        clock: Monotonic seconds.
        registry: Where the metrics go; None when there is no metrics server.
    """

    clock: Callable[[], float]
    registry: CollectorRegistry | None = None


@dataclass(frozen=True, slots=True)
class HostView:
    """The running host as hook objects see it.

    Attributes:
        config: The configuration that is being served.
        instances: Plugin objects by instance name.
    """

    config: Document
    instances: Mapping[str, Plugin[Parameters]]


class ConfigReport(Protocol):
    """Where `endpick_validate` puts what it finds. Paths lead from the root of the document: `("plugins", 0, "parameters")`."""

    def error(self, path: tuple[str | int, ...], message: str, help: str | None = None) -> None:  # noqa: A002
        """Refuse the configuration because of the value at `path`; a path that the document lacks is taken to its nearest ancestor."""

    def warn(self, path: tuple[str | int, ...], message: str, help: str | None = None) -> None:  # noqa: A002
        """Tell the operator about the value at `path`."""

    def position(self, path: tuple[str | int, ...]) -> tuple[int, int]:
        """Line and column of a value, both counted from 1."""


class HookSpecs:
    """Every hook there is."""

    @hookspec
    def endpick_register(self) -> Mapping[str, type[Plugin[Parameters]]]:
        """Offer plugin types that have no entry point of their own: each class under the name of its type.

        Called before a plan is made: at start, at every reload, and by the verbs that take a configuration. The types join those found
        through entry points under the same rules: they are of the hook object's distribution, a clash is an error, and only those a
        configuration uses are checked. Each class must be importable by name.
        """
        raise NotImplementedError

    @hookspec
    def endpick_plugin_loaded(self, record: PluginRecord) -> None:
        """A plugin type of a plan was imported, now or earlier, and has passed every check. Called once for each type and plan."""

    @hookspec
    def endpick_validate(self, config: Document, report: ConfigReport) -> None:
        """Judge a configuration across its parts, at start, at every reload and by `endpick validate`.

        Called after the host's own checks have found no error.
        """

    @hookspec
    def endpick_configure(self, services: HostServices) -> None:
        """Wrap or replace what plugins are given. Called once, before the first instance is built."""

    @hookspec
    def endpick_startup(self, host: HostView) -> Awaitable[None] | None:
        """The instances have started and serving is about to begin. May be `async def`; is awaited under a deadline.

        Raises:
            ConfigurationError: start-up ends with this message; so it does with any other exception.
        """

    @hookspec
    def endpick_shutdown(self, host: HostView) -> Awaitable[None] | None:
        """Serving has ended and the instances are about to stop. May be `async def`; is awaited under a deadline."""

    @hookspec
    def endpick_config_reload(self, old: Document, new: Document) -> Awaitable[None] | None:
        """A new configuration has been proven and built, and is about to replace the old one. May be `async def`.

        Raises:
            ReloadRejected: the old configuration keeps serving, and the message is logged.
        """

    @hookspec
    def endpick_add_commands(self, group: click.Group) -> None:
        """Add verbs to the command line, with `group.add_command`.

        Called when the operator uses a verb that endpick itself does not have, and the environment variable `ENDPICK_CONFIG` names a
        configuration that names the hook object.
        """

    @hookspec
    def endpick_decision(self, record: Document) -> None:
        """The scheduler has found endpoints for a request, or has not.

        Called with a sample of the decision records (`--decision-sampling`, 1 % unless told otherwise) in a thread of its own, so the
        request does not wait for it. While an implementation takes its time, up to 256 records wait; what comes on top is dropped and
        counted in `endpick_decision_records_total`. `endpick schema decision` describes a record. Requests that are refused before
        the scheduler sees them have none.
        """
