"""What a plugin may raise on purpose, and what the host raises at it.

```
EndpickError
├── PluginError              raised by plugins
│   ├── ConfigurationError   parameters that no schema can judge (a file that is missing, two options that exclude each other)
│   └── Unavailable          a source or producer has nothing to give right now
├── UndeclaredAccess         raised at plugins that touch a data key they did not declare
├── UnknownKey               raised at plugins that ask a view for a key of another scope, or an unknown column
└── ReloadRejected           raised by hook objects that veto a new configuration
```

Expected outcomes are values, never exceptions: a filter that keeps nothing, an admitter that refuses.
Every other exception that leaves a plugin is a *fault* of that plugin, handled as its `onFault` says.
"""

from __future__ import annotations


class EndpickError(Exception):
    """Base of every exception defined by endpick."""


class PluginError(EndpickError):
    """Base of what a plugin may raise on purpose."""


class ConfigurationError(PluginError):
    """The parameters are valid by schema and still cannot work. Raise it from `__init__` or `start`; the message reaches the operator."""


class Unavailable(PluginError):  # noqa: N818 - reads as a state, not as an accident
    """A data source or producer has nothing to give right now. Counted, retried at the next interval, logged once per interval."""


class UndeclaredAccess(EndpickError):  # noqa: N818
    """A plugin read a data key missing from its `consumes`, or wrote one missing from its `produces`."""


class UnknownKey(EndpickError, KeyError):  # noqa: N818
    """The key has another scope than the place it was asked for."""

    def __str__(self) -> str:
        return str(self.args[0])


class ReloadRejected(EndpickError):  # noqa: N818
    """Raised by `endpick_config_reload` to veto a new configuration; the old one keeps serving."""
