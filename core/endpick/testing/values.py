"""Made-up values: plausible ones for data keys, and nonsense of the right type for collectors."""

from __future__ import annotations

import dataclasses
import enum
import math
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from types import UnionType

from endpick.api import keys
from endpick.api.data import AnyKey
from endpick.api.metrics_page import MetricsPage

_BLOCKS = 16

_MAKERS: Mapping[str, Callable[[Random], object]] = {
    keys.WAITING_QUEUE_SIZE.name: lambda random: float(random.randrange(20)),
    keys.RUNNING_REQUESTS_SIZE.name: lambda random: float(random.randrange(20)),
    keys.KV_CACHE_USAGE.name: lambda random: random.random(),
    keys.CACHE_BLOCK_SIZE.name: lambda _: 16.0,
    keys.CACHE_NUM_BLOCKS.name: lambda random: float(random.randrange(1000, 5000)),
    keys.LORA_ADAPTERS.name: lambda random: keys.LoraAdapters(frozenset(random.sample(("a", "b", "c"), 2)), frozenset(), 4),
    keys.SERVED_MODELS.name: lambda _: (keys.ServedModel("base"), keys.ServedModel("a", "base")),
    keys.INFLIGHT_REQUESTS.name: lambda random: float(random.randrange(10)),
    keys.INFLIGHT_TOKENS.name: lambda random: float(random.randrange(5000)),
    keys.PREFIX_MATCH_BLOCKS.name: lambda random: float(random.randrange(_BLOCKS + 1)),
    keys.PREFIX_BLOCKS.name: lambda _: keys.PrefixBlocks(_BLOCKS, 64, tuple(range(_BLOCKS))),
}


def value_of(key: AnyKey, random: Random, samples: Mapping[AnyKey, Sequence[object]]) -> object:
    """A plausible value: one of the author's samples, else one of our own making; None where we cannot make one.

    Numbers under keys we do not know are between 0 and 1.
    """
    name = getattr(key, "shared_name", key.name)
    given = next((values for sampled, values in samples.items() if sampled.name in (key.name, name)), ())
    if given:
        return random.choice(given)
    if name in _MAKERS:
        return _MAKERS[name](random)
    if key.is_number:
        return random.random()
    try:
        return key.type()
    except Exception:
        return None


_PAGES = (
    b"",
    b"\x00\xff\xfe binary \x80",
    b"<html><body>502 Bad Gateway</body></html>",
    b'# HELP x\n# TYPE x gauge\nx{a="b" 1\nx}{ 1\nx NaN\nx +Inf\nx 1 2 3\n',
)
_NONSENSE: Mapping[type, tuple[object, ...]] = {
    MetricsPage: tuple(MetricsPage(page) for page in _PAGES),
    bool: (True, False),
    int: (0, -1, 2**63),
    float: (math.nan, -math.inf, -1.0, 0.0),
    str: ("", "\ufffd\x00", "x" * 10_000),
    bytes: _PAGES,
    object: (object(), None),
    type(None): (None,),
}
_CONCRETE: Mapping[object, type] = {Mapping: dict, Sequence: list, Iterable: list}


def nonsense_of(kind: type) -> tuple[object, ...]:
    """Payloads of this type that say nothing sensible; none when we cannot make any."""
    return tuple(_of_type(kind))


def _of_type(kind: object) -> Iterator[object]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        for alternative in arguments:
            yield from _of_type(alternative)
    elif origin is typing.Literal:
        yield from arguments
    elif origin is not None:
        yield from _of_type(_CONCRETE.get(origin, origin))
    elif isinstance(kind, type):
        yield from _of_class(kind)


def _of_class(kind: type) -> Iterator[object]:
    if kind in _NONSENSE:
        yield from _NONSENSE[kind]
    elif dataclasses.is_dataclass(kind):
        yield from _dataclasses_of(kind)
    elif issubclass(kind, enum.Enum):
        yield from kind
    else:
        try:
            yield kind()
        except Exception:
            return


def _dataclasses_of(kind: type) -> Iterator[object]:
    """One object for each round of field values, as many rounds as the field with most values needs."""
    try:
        hints = typing.get_type_hints(kind)
    except (NameError, TypeError):
        return
    fields = [field for field in dataclasses.fields(kind) if field.init]
    choices = {field.name: tuple(_of_type(hints[field.name])) for field in fields}
    if not all(choices.values()):
        return
    for number in range(max(map(len, choices.values()), default=1)):
        try:
            yield kind(**{name: values[number % len(values)] for name, values in choices.items()})
        except Exception:  # noqa: S112 - a type that refuses nonsense by itself needs no test with it
            continue
