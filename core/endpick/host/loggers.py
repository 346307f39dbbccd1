"""Loggers of plugin instances: `logging` knows none of them by name, so that each goes with its instance.

What `logging.getLogger` has made stays for as long as the process, and so does a place for each part of a name between two dots, with all
of the name before it: 50,000 dots took 3 GB and four seconds. Names are the configuration's, and a reload may bring others each time.
"""

from __future__ import annotations

import logging

_ABOVE = "endpick.plugin"


def logger_for(name: str, origin: str) -> logging.Logger:
    """A logger whose records carry an instance's identity, wherever they are written from.

    Args:
        name: The instance's, whatever is in it.
        origin: How logs name it, as `Instance.origin`.
    """
    return _InstanceLogger(f"{_ABOVE}.{name}", origin, logging.getLogger(_ABOVE))


class _InstanceLogger(logging.Logger):
    """As one of `logging.getLogger`, below `endpick.plugin`."""

    def __init__(self, name: str, origin: str, parent: logging.Logger) -> None:
        super().__init__(name)
        self.parent = parent
        self._origin = origin

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - of `logging`, which keeps answers, and drops those of listed loggers only
        """Whether a record of this level would be handled."""
        return level > self.manager.disable and level >= self.getEffectiveLevel()

    def getChild(self, suffix: str) -> _InstanceLogger:  # noqa: N802 - of `logging`
        """One with a longer name; another one each time."""
        return _InstanceLogger(f"{self.name}.{suffix}", self._origin, self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Stamp each record, and let through what filters do that a plugin has added."""
        record.plugin = self._origin
        return bool(super().filter(record))
