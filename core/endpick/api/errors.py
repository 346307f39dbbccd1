"""Exceptions that plugins raise on purpose, or that the host raises at them.

Expected outcomes are values. Every other exception is a *fault* of the plugin; its `onFault` decides the rest.
"""

from __future__ import annotations


class EndpickError(Exception):
    """The base class of all exceptions that endpick defines for plugins."""


class PluginError(EndpickError):
    """The base class of exceptions that a plugin may raise on purpose."""


class ConfigurationError(PluginError):
    """Parameters are valid by schema but cannot work.

    A plugin raises it in its constructor, in `Plugin.subscriptions`, in `Plugin.start` or in `EndpointDiscovery.run`. The host refuses the
    start or the reload, and shows operators the message and `repair`, the way out.
    """

    def __init__(self, message: str, repair: str = "correct the parameters") -> None:
        super().__init__(message)
        self.repair = repair


class Unavailable(PluginError):  # noqa: N818 - a state, not an accident
    """A source, or a collector, has no data right now.

    The data layer counts it as a poll or collect error, and logs it without a traceback, once per interval. Columns keep their values.
    """


class UndeclaredAccess(EndpickError):  # noqa: N818
    """A plugin read a key that it does not declare, or wrote a key missing from `produces`.

    The conformance kit and tests raise it at the plugin; `endpick serve` counts and logs the access instead.
    """


class UnknownKey(EndpickError, KeyError):  # noqa: N818
    """The key's scope or type does not fit the view that it was requested from."""

    def __str__(self) -> str:
        return str(self.args[0])
