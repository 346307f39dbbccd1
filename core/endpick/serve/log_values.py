"""What a log line says of the values that were logged, in bounded time and space: plugins log what they like.

A list may hold any number of texts of any length, or itself by way of others, so that its text would never end. So each value is weighed
before a text is made of it, and what weighs too much is shown in part.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

LONGEST_TEXT = 16_000
"""Characters of a traceback, a message, or a field."""
MOST_FIELDS = 100
"""Of one line; those that came first are shown."""
_MOST_WEIGHT = 4_000_000
"""Of one field or argument: its characters, and some for each value within it. It takes some milliseconds at most to make a text of it."""
_WEIGHT_OF_ONE = 400
_DEEPEST = 50
"""Lists within lists; JSON has an end, too."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_TEXTS = (str, bytes, bytearray)
_LISTS = (list, tuple, set, frozenset)


def event_of(record: logging.LogRecord) -> str:
    """The message with its arguments in it.

    Raises:
        whatever the text of an argument raises, or TypeError where they do not fit the message.
    """
    if not record.args:
        return shortened(str(record.msg))
    bounded: object
    if isinstance(record.args, Mapping):
        bounded = {name: _bounded(value) for name, value in record.args.items()}
    else:
        bounded = tuple(map(_bounded, record.args))
    return shortened(str(record.msg) % bounded)


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """The fields that the caller passed as `extra=`, by plain names: a text of another class may be equal to none, and look like any."""
    given = [(name, value) for name, value in vars(record).items() if name not in _STANDARD]
    fields = {shortened(_plain(name)): _bounded(value) for name, value in given[:MOST_FIELDS]}
    if len(given) > MOST_FIELDS:
        fields["fields_left_out"] = len(given) - MOST_FIELDS
    return fields


def shortened(text: str) -> str:
    """A text with its middle left out where it is too long for a line."""
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters …\n{text[-half:]}"


def _bounded(value: object) -> object:
    """The value itself where it is short, or a text that stands for it."""
    if type(value) is str:
        return shortened(value)
    if not isinstance(value, (dict, bytes, bytearray, *_LISTS)):
        return value
    if not _is_light(value):
        return f"a {type(value).__name__} of {len(value)}, with more in it than a line of the log has room for"
    text = str(value)
    return value if len(text) <= LONGEST_TEXT else shortened(text)


def _is_light(value: object) -> bool:
    """Whether a text can be made of all that is in it, found out by looking at no more than that allows."""
    weight, layer = 0, [value]
    for _ in range(_DEEPEST):
        below: list[object] = []
        for each in layer:
            within = [*each.keys(), *each.values()] if isinstance(each, dict) else each if isinstance(each, _LISTS) else ()
            weight += _WEIGHT_OF_ONE + (len(each) if isinstance(each, _TEXTS) else 0)
            if weight + len(within) * _WEIGHT_OF_ONE > _MOST_WEIGHT:
                return False
            below += within
        if not below:
            return True
        layer = below
    return False


def _plain(name: object) -> str:
    return str.__getitem__(name if isinstance(name, str) else str(name), slice(None))
