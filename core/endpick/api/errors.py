"""Exceptions that plugins raise on purpose, or that the host raises at them.

Expected outcomes are values. Every other exception is a *fault* of the plugin; its `onFault` decides the rest.
"""

from __future__ import annotations


class EndpickError(Exception):
    """Base of all exceptions defined by endpick."""


class PluginError(EndpickError):
    """Base of exceptions a plugin may raise on purpose."""


class ConfigurationError(PluginError):
    """Parameters are valid by schema but cannot work. Operators see the message, and `repair` as the way out."""

    def __init__(self, message: str, repair: str = "correct the parameters") -> None:
        super().__init__(message)
        self.repair = repair


class Unavailable(PluginError):  # noqa: N818 - a state, not an accident
    """A source or producer has no data right now. Counted, and logged once per interval."""


class UndeclaredAccess(EndpickError):  # noqa: N818
    """A plugin read a key missing from `consumes`, or wrote one missing from `produces`."""


class UnknownKey(EndpickError, KeyError):  # noqa: N818
    """The key has another scope than the view it was requested from."""

    def __str__(self) -> str:
        return str(self.args[0])


class ReloadRejected(EndpickError):  # noqa: N818
    """Raised by `endpick_config_reload` to veto a new configuration; the old one keeps serving."""
