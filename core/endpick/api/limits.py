"""Limits of plugins: a limit that acts is counted under its name, and the log says what to change."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from endpick.api.plugin import PluginContext

_LOG_SECONDS = 30.0
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on what clients, servers or files may ask of a plugin.

    Attributes:
        name: The parameter that sets it, as operators write it; in capitals where it is fixed, or follows from one that `told` names. The
            metric's label `limit`.
        told: What the log says when it acts: what was refused, and what to change.
    """

    name: str
    told: str


class Limits:
    """The limits of one instance: make it in the constructor, once, and call `acted` where a limit refuses something.

    For example `self._limits = Limits(context, (TOO_LONG,))`, and later `self._limits.acted(TOO_LONG, about=url)`. Each limit is a series
    of `endpick_plugin_limits_total`, which begins at 0, and the log tells each twice a minute at most.
    """

    def __init__(self, context: PluginContext, limits: Iterable[Limit]) -> None:
        """All limits that may act, with names of their own.

        Raises:
            ValueError: the instance has `Limits` already.
        """
        from endpick.api.fast_metrics import Counts  # noqa: PLC0415 - prometheus_client, which checking a configuration does without

        counts = Counts("endpick_plugin_limits_total", "Times that a limit of a plugin acted.", ("limit",), context.registry)
        self._counts = {limit: counts.labels(limit.name) for limit in limits}
        self._told = dict.fromkeys(self._counts, (-math.inf, 0.0))
        self._clock, self._logger = context.clock, context.logger

    def acted(self, limit: Limit, about: str = "", times: int = 1) -> None:
        """Count, and tell if that was not done just now. Call it on the event loop.

        Args:
            limit: One of those that the constructor got.
            about: Whose doing it was, such as a URL or the name of an endpoint; a field of the log line; 200 characters of it.
            times: How often.
        """
        tally = self._counts[limit]
        tally.value += times
        now, (told_at, told) = self._clock(), self._told[limit]
        if now - told_at < _LOG_SECONDS:
            return
        self._told[limit] = now, tally.value
        extra = {"limit": limit.name, "times": int(tally.value - told), "about": about[:_SHOWN_CHARACTERS]}
        self._logger.warning("%s", limit.told, extra=extra)
