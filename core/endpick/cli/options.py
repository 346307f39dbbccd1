"""Command-line options declared as annotated fields of a dataclass.

The field `metrics_port: Annotated[Port, Option("Port of /metrics.")] = 9090` becomes the option `--metrics-port`.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import click

_T = TypeVar("_T")
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_MAX_WORKERS = 128
_STORES = ("valkey", "valkeys", "redis", "rediss", "unix", "local", "file")
_BYTES = re.compile(r"(?<=[0-9kKMGTPEi])B$")


class Option:
    """The help text of an option, the flag if the field has another name, and further arguments of `click.option`."""

    def __init__(self, help_text: str, flag: str = "", **settings: Any) -> None:  # noqa: ANN401 - as click has it
        self.help = help_text
        self.flag = flag
        self.settings = settings


class Value(click.ParamType[_T]):
    """Text that `parse` converts, or refuses with a ValueError that is shown to the user; `write` is the reverse, for `--help`."""

    def __init__(self, name: str, parse: Callable[[str], _T], write: Callable[[_T], object] = lambda value: value) -> None:
        self.name = name
        self.write = write
        self._parse = parse

    def convert(self, value: str | _T, param: click.Parameter | None, ctx: click.Context | None) -> _T:
        """Parse, or fail with exit code 2."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ValueError as problem:
            self.fail(str(problem), param, ctx)


def _boolean(text: str) -> bool:
    if text not in _TRUE | _FALSE:
        raise ValueError(f"'{text}' is not a boolean; write true or false")
    return text in _TRUE


def _duration(text: str, *, positive: bool = False) -> float:
    from endpick.api.plugin import parse_duration

    seconds = parse_duration(text)
    if seconds < 0 or (positive and not seconds):
        raise ValueError(f"'{text}' is too short; write for example 50ms or 1m30s")
    return seconds


def _quantity(text: str) -> int:
    """Reads `10MiB` like `10Mi`, and K like k."""
    from endpick.config.units import parse_quantity

    plain = _BYTES.sub("", text.strip())
    try:
        quantity = parse_quantity(f"{plain[:-1]}k" if plain.endswith("K") else plain)
    except ValueError:
        raise ValueError(f"'{text}' is not a quantity; write for example 16Mi or 500k") from None
    if quantity < 1:
        raise ValueError(f"'{text}' is too little; write for example 16Mi or 500k")
    return quantity


def _gates(text: str) -> tuple[str, ...]:
    from endpick.config.gates import parse_gates

    return parse_gates(text)


def _workers(text: str) -> int:
    if text == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    number = int(text) if text.isdecimal() else 0
    if not 1 <= number <= _MAX_WORKERS:
        raise ValueError(f"'{text}' is no number of workers: write auto, or 1 to {_MAX_WORKERS}")
    return number


def _state_url(text: str) -> str:
    parts = urlsplit(text)
    if text and parts.scheme not in _STORES:
        raise ValueError(f"'{text}' does not begin with {', '.join(f'{scheme}://' for scheme in _STORES)}")
    if parts.password:  # would be seen in the list of processes
        raise ValueError("keep the password out of it: it comes from the variable VALKEY_PASSWORD")
    return text


def _seconds_text(seconds: float) -> str:
    return f"{seconds:g}s" if seconds >= 1 else f"{seconds * 1000:g}ms"


def _size_text(size: int) -> str:
    return f"{size >> 10}Ki" if size % 2**20 else f"{size >> 20}Mi"


GO_BOOLEAN = Value("boolean", _boolean)
DURATION = Value("duration", _duration, _seconds_text)
POSITIVE_DURATION = Value("duration", functools.partial(_duration, positive=True), _seconds_text)
QUANTITY = Value("quantity", _quantity, _size_text)

Switch = Annotated[bool, GO_BOOLEAN]
Seconds = Annotated[float, DURATION]
PositiveSeconds = Annotated[float, POSITIVE_DURATION]
Size = Annotated[int, QUANTITY]
Count = Annotated[int, click.IntRange(1)]
Port = Annotated[int, click.IntRange(0, 65535)]
Gates = Annotated[tuple[str, ...], Value("gates", _gates)]
Workers = Annotated[int, Value("workers", _workers)]
StateUrl = Annotated[str, Value("url", _state_url)]


def takes(options: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of a dataclass to a command, bases first; the callback gets an instance as `options`."""
    hints = get_type_hints(options, include_extras=True)
    # `dataclasses.fields` begins with the last base
    names = [name for owner in (*options.__bases__, options) for name in inspect.get_annotations(owner)]

    def decorate(callback: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(callback)
        def call(**given: Any) -> None:  # noqa: ANN401 - the fields have the types
            own = {name: given.pop(name) for name in names if name in given}
            callback(**given, options=options(**own))

        for name in reversed(names):  # as decorators are applied
            for option in (note for note in get_args(hints[name]) if isinstance(note, Option)):
                _click_option(name, hints[name], getattr(options, name), option)(call)
        return call

    return decorate


def _click_option(name: str, annotation: Any, default: Any, option: Option) -> Callable[[Callable[..., None]], object]:  # noqa: ANN401 - of any type
    kind = _kind(annotation)
    is_value = isinstance(kind, Value)
    settings = {
        "help": option.help,
        "type": kind,
        "is_flag": kind is bool or None,
        "multiple": isinstance(default, tuple) and not is_value,
        "default": kind.write(default) if is_value and default is not None else default,
        "show_default": default not in (None, "", False, ()) or None,
    }
    return click.option(f"--{option.flag or name.replace('_', '-')}", name, **settings | option.settings)


def _kind(annotation: Any) -> Any:  # noqa: ANN401 - as click has it
    """The click type in an annotation, else that of the Python type; of `X | None` and `tuple[X, ...]`, that of X."""
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        return click.Choice(arguments)
    for argument in arguments:
        if isinstance(argument, click.ParamType):
            return argument
    return _kind(arguments[0]) if arguments else click.Path(path_type=Path) if annotation is Path else annotation
