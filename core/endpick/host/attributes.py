"""What the host reads of a plugin beside calling it: checked once when the plugin is loaded and once when an instance is built.

An attribute of an instance may be a property, and answer otherwise the next time. So what is read later is looked at again, and where it is
nonsense by then, the default of the kind stands for it: the host never works with a number that is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from endpick.api.datalayer import DataCollector, DataSource, EndpointDiscovery, PollingPoolSource, PollingSource
from endpick.api.plugin import Parameters, Plugin
from endpick.api.request_control import DataProducer, Parser
from endpick.api.scheduling import Picker, ProfileHandler
from endpick.host.failures import CALL_FAILURES, is_the_hosts, kind_of

_LONGEST_SECONDS = 1e9
"""Some thirty years: no clock and no timer of an event loop has trouble with it."""


_MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute that the host reads.

    Attributes:
        kind: Which plugins have it.
        name: Its name.
        wanted: What it has to be, for messages.
        fits: Whether a value is that.
    """

    kind: type[Plugin[Any]]
    name: str
    wanted: str
    fits: Callable[[object], bool]


def _is_duration(value: object) -> bool:
    """Whether it is a number of seconds of Python's own kinds: others compare with code of the plugin."""
    return (type(value) is float or type(value) is int) and 0 <= value <= _LONGEST_SECONDS and not math.isnan(value)


def _is_positive(value: object) -> bool:
    return _is_duration(value) and value != 0


def _is_duration_or_none(value: object) -> bool:
    return value is None or _is_duration(value)


def _is_flag(value: object) -> bool:
    return type(value) is bool


def _are_names(value: object) -> bool:
    return type(value) is tuple and all(type(each) is str for each in value)


def _is_name_or_none(value: object) -> bool:
    return value is None or type(value) is str


def _is_count_or_none(value: object) -> bool:
    return value is None or (type(value) is int and 0 < value <= _MOST)


_DURATION = "a number of seconds"

ATTRIBUTES = (
    Attribute(Plugin, "tolerated_age_seconds", f"{_DURATION} or None", _is_duration_or_none),
    Attribute(PollingSource, "interval_seconds", f"{_DURATION} or None", _is_duration_or_none),
    Attribute(PollingSource, "timeout_seconds", f"{_DURATION} above 0", _is_positive),
    Attribute(PollingSource, "repeats_payload", "True or False", _is_flag),
    Attribute(PollingPoolSource, "interval_seconds", f"{_DURATION} above 0", _is_positive),
    Attribute(PollingPoolSource, "timeout_seconds", f"{_DURATION} above 0", _is_positive),
    Attribute(DataSource, "default_collectors", "a tuple of names", _are_names),
    Attribute(DataCollector, "default_source", "a name or None", _is_name_or_none),
    Attribute(EndpointDiscovery, "publishes_objectives", "True or False", _is_flag),
    Attribute(DataProducer, "timeout_seconds", f"{_DURATION} above 0", _is_positive),
    Attribute(Parser, "claims", "a tuple of names", _are_names),
    Attribute(Parser, "reads_usage", "True or False", _is_flag),
    Attribute(Parser, "usage_mark", "bytes", lambda value: type(value) is bytes),
    Attribute(Picker, "uses_scores", "True or False", _is_flag),
    Attribute(ProfileHandler, "most_profiles", "a number above 0 or None", _is_count_or_none),
)
"""All of them."""


def wrong_in_class(plugin: type[Plugin[Any]], whose: str) -> Iterator[str]:
    """A sentence for each attribute of a class that is not what it has to be; what is worked out for each instance is for `wrong_in`."""
    for attribute in ATTRIBUTES:
        if issubclass(plugin, attribute.kind):
            value: object = getattr(plugin, attribute.name)
            if not hasattr(type(value), "__get__") and not attribute.fits(value):
                yield f"`{attribute.name}` {whose} is {_shown(value)}, not {attribute.wanted}"


def wrong_in(plugin: Plugin[Parameters]) -> str | None:
    """What is wrong with the first attribute of an instance that is not what it has to be; None when all are."""
    for attribute in ATTRIBUTES:
        if isinstance(plugin, attribute.kind):
            value: object = getattr(plugin, attribute.name)
            if not attribute.fits(value):
                return f"its `{attribute.name}` is {_shown(value)}, not {attribute.wanted}"
    return None


def _shown(value: object) -> str:
    """A value as far as Python itself can show it: that of a class of the plugin would be shown by code of the plugin."""
    if type(value) in (float, bool, type(None)):
        return repr(value)
    return f"{value!r:.60}" if type(value) is str else f"of type {kind_of(value)}"


T = TypeVar("T")


def _read(plugin: Plugin[Parameters], kind: type[Plugin[Any]], name: str, default: T) -> T:
    """The attribute now, or the default of its kind where it is nonsense by now, or raises."""
    (attribute,) = (each for each in ATTRIBUTES if each.kind is kind and each.name == name)
    try:
        value: object = getattr(plugin, name)
        if attribute.fits(value):
            return cast("T", value)
    except CALL_FAILURES as problem:
        if is_the_hosts(problem):
            raise
    return default


def tolerated_age_of(plugin: Plugin[Parameters]) -> float | None:
    """`Plugin.tolerated_age_seconds`."""
    return _read(plugin, Plugin, "tolerated_age_seconds", Plugin.tolerated_age_seconds)


def poll_interval_of(plugin: PollingSource[Parameters, object]) -> float | None:
    """`PollingSource.interval_seconds`."""
    return _read(plugin, PollingSource, "interval_seconds", PollingSource.interval_seconds)


def poll_timeout_of(plugin: PollingSource[Parameters, object]) -> float:
    """`PollingSource.timeout_seconds`."""
    return _read(plugin, PollingSource, "timeout_seconds", PollingSource.timeout_seconds)


def repeats_payload_of(plugin: PollingSource[Parameters, object]) -> bool:
    """`PollingSource.repeats_payload`."""
    return _read(plugin, PollingSource, "repeats_payload", PollingSource.repeats_payload)


def pool_interval_of(plugin: PollingPoolSource[Parameters, object]) -> float:
    """`PollingPoolSource.interval_seconds`."""
    return _read(plugin, PollingPoolSource, "interval_seconds", PollingPoolSource.interval_seconds)


def pool_timeout_of(plugin: PollingPoolSource[Parameters, object]) -> float:
    """`PollingPoolSource.timeout_seconds`."""
    return _read(plugin, PollingPoolSource, "timeout_seconds", PollingPoolSource.timeout_seconds)


def publishes_objectives(plugin: EndpointDiscovery[Parameters]) -> bool:
    """`EndpointDiscovery.publishes_objectives`."""
    return _read(plugin, EndpointDiscovery, "publishes_objectives", EndpointDiscovery.publishes_objectives)


def produce_timeout_of(plugin: DataProducer[Parameters]) -> float:
    """`DataProducer.timeout_seconds`."""
    return _read(plugin, DataProducer, "timeout_seconds", DataProducer.timeout_seconds)


def claims_of(plugin: Parser[Parameters]) -> tuple[str, ...]:
    """`Parser.claims`."""
    return _read(plugin, Parser, "claims", Parser.claims)


def usage_mark_of(plugin: Parser[Parameters]) -> bytes | None:
    """`Parser.usage_mark`; None for a parser that reads no usage."""
    reads_usage = _read(plugin, Parser, "reads_usage", Parser.reads_usage)
    return _read(plugin, Parser, "usage_mark", Parser.usage_mark) if reads_usage else None
