"""What each request makes and reads, made to cost little: frozen dataclasses, of which it takes some nine, and properties."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import update_wrapper
from operator import attrgetter
from types import FunctionType
from typing import TypeVar

R = TypeVar("R")


def read_directly(kind: type, **attributes: str) -> None:
    """Have properties of a class that only hand out an attribute do so without a Python call; they stay as read-only as they were.

    The compiled build makes no such call, and is left as it is.

    Args:
        kind: The class.
        attributes: For each property the name of its attribute.
    """
    for name, attribute in attributes.items():
        written = vars(kind)[name]
        if isinstance(written, property):
            setattr(kind, name, property(attrgetter(attribute), doc=written.__doc__))


_become: Callable[[object, type], None] = object.__dict__["__class__"].__set__


def quickly_made(record: type[R]) -> type[R]:
    """Decorate a frozen dataclass with slots: its `__init__` then does the same in a third to two thirds of the time.

    A frozen class forbids assignment, so the `__init__` that `dataclass` writes calls `object.__setattr__` for each field. This one makes
    the object a draft, of a subclass that allows assignment, assigns the fields, and makes it what it was asked to be. Once it is made it
    is as frozen as before.

    Args:
        record: Each of its fields is an argument of `__init__`.
    """
    return _with_quick_init(record, "")


def quickly_checked(usual: str) -> Callable[[type[R]], type[R]]:
    """The same for records that check their fields in `__post_init__`, which is called for unusual ones alone.

    Args:
        usual: A condition on the fields, by their names, and on names of the module. It holds for nearly every record, and where it holds
            `__post_init__` would find nothing to do.
    """
    return lambda record: _with_quick_init(record, usual)


def _with_quick_init(record: type[R], usual: str) -> type[R]:
    written_by_dataclass = record.__init__
    assert isinstance(written_by_dataclass, FunctionType)
    allows_assignment = {"__slots__": (), "__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    known: dict[str, object] = {
        **vars(sys.modules[record.__module__]),
        "record": record,
        "written_by_dataclass": written_by_dataclass,
        "become": _become,
        "draft": type(record.__name__, (record,), allows_assignment),
    }
    makers = {field.name: field.default_factory for field in fields(record) if field.default_factory is not MISSING}  # type:
    ignore[arg-type] for name, maker in makers.items():
        known[f"make_{name}"] = maker
    defaults = written_by_dataclass.__defaults__ or ()
    names = [field.name for field in fields(record)]  # type: ignore[arg-type]
    known["absent"] = next((default for name, default in zip(names[::-1], defaults[::-1], strict=False) if name in makers), None)
    unusual = f"if not ({usual}): " if usual else ""
    check = f"    {unusual}self.__post_init__()" if hasattr(record, "__post_init__") else ""
    exec(_init(names, makers, check), known)  # noqa: S102 - nothing in the text but names of fields, and what the class itself says
    quick = known["__init__"]
    assert isinstance(quick, FunctionType)
    quick.__defaults__ = defaults
    record.__init__ = update_wrapper(quick, written_by_dataclass)  # type: ignore[method-assign]
    return record


def _init(names: list[str], makers: Mapping[str, object], check: str) -> str:
    """The source of an `__init__`, which like that of `dataclass` has to be written for the fields that there are."""
    given = ", ".join(names)
    return "\n".join(
        [
            f"def __init__(self, {given}):",
            "    if self.__class__ is not record:",  # an author's subclass may have fields of its own
            f"        return written_by_dataclass(self, {given})",
            "    become(self, draft)",
            *[f"    if {name} is absent: {name} = make_{name}()" for name in makers],
            *[f"    self.{name} = {name}" for name in names],
            check,
            "    self.__class__ = record",
        ]
    )
