"""Checks the attributes the host reads of plugins, of the class when it is loaded and of each instance when it is built."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from endpick.api.datalayer import DataCollector, DataSource, PollingPoolSource, PollingSource
from endpick.api.discovery import EndpointDiscovery
from endpick.api.plugin import Plugin
from endpick.api.request import shown
from endpick.api.request_control import DataProducer, Parser
from endpick.api.scheduling import Picker, ProfileHandler


@dataclass(frozen=True, slots=True)
class _Attribute:
    kind: type[Plugin[Any]]
    name: str
    wanted: str
    fits: Callable[[object], bool]


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _is_duration_or_none(value: object) -> bool:
    return value is None or value == 0 or _is_positive(value)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _are_names(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(each, str) for each in value)


_ATTRIBUTES = (
    _Attribute(Plugin, "tolerated_age_seconds", "a number of seconds or None", _is_duration_or_none),
    _Attribute(PollingSource, "interval_seconds", "a number of seconds or None", _is_duration_or_none),
    _Attribute(PollingSource, "timeout_seconds", "a number of seconds above 0", _is_positive),
    _Attribute(PollingSource, "repeats_payload", "True or False", _is_flag),
    _Attribute(PollingPoolSource, "interval_seconds", "a number of seconds above 0", _is_positive),
    _Attribute(PollingPoolSource, "timeout_seconds", "a number of seconds above 0", _is_positive),
    _Attribute(DataSource, "default_collectors", "a tuple of names", _are_names),
    _Attribute(DataCollector, "default_source", "a name or None", lambda value: value is None or isinstance(value, str)),
    _Attribute(EndpointDiscovery, "publishes_objectives", "True or False", _is_flag),
    _Attribute(DataProducer, "timeout_seconds", "a number of seconds above 0", _is_positive),
    _Attribute(Parser, "claims", "a tuple of names", _are_names),
    _Attribute(Parser, "reads_usage", "True or False", _is_flag),
    _Attribute(Parser, "usage_mark", "bytes", lambda value: isinstance(value, bytes)),
    _Attribute(Picker, "uses_scores", "True or False", _is_flag),
    _Attribute(ProfileHandler, "most_profiles", "a number above 0 or None", lambda value: value is None or _is_positive(value)),
)


def class_faults(plugin: type[Plugin[Any]], whose: str) -> Iterator[str]:
    """A sentence for each wrong attribute of a class; properties are checked on the instance."""
    for attribute in _ATTRIBUTES:
        if issubclass(plugin, attribute.kind):
            value: object = getattr(plugin, attribute.name)
            if not hasattr(type(value), "__get__") and not attribute.fits(value):
                yield f"`{attribute.name}` {whose} is {shown(value)}, not {attribute.wanted}"


def instance_fault(plugin: Plugin[Any]) -> str | None:
    """The first wrong attribute of an instance; None if all are right."""
    for attribute in _ATTRIBUTES:
        if isinstance(plugin, attribute.kind):
            value: object = getattr(plugin, attribute.name)
            if not attribute.fits(value):
                return f"its `{attribute.name}` is {shown(value)}, not {attribute.wanted}"
    return None
