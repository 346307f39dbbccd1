"""Notes which package of endpick calls which other one while endpick runs, and picks the calls that a picture shows."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from types import FrameType
from typing import TypeAlias

PLUGINS = "endpick_builtin"
SHARED = frozenset({"_proto", "api", "diagnostics", "installation", "observability"})
"""Every package uses what is there; no picture shows calls into it."""
_OF_TIMERS = "serve"
"""Callbacks that begin there are those of the process, such as a look at its memory each second: no part of any request."""
_RUNS_THE_LOOP = ("endpick.serve.main", "_run_to_its_end")
"""What it calls the event loop has called; what came before it did not."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function of endpick that was called."""

    module: str
    name: str
    """With that of its class: `Director.decide`."""

    @property
    def package(self) -> str:
        """`requests` for what is in `endpick.requests`; the first part of the name for what is outside `endpick`."""
        top, _, rest = self.module.partition(".")
        return rest.partition(".")[0] if top == "endpick" else top

    @property
    def public(self) -> bool:
        """False for what is a detail of its package: private functions, closures, lambdas, properties, special methods."""
        *owners, last = self.name.split(".")
        if any(part.startswith(("_", "<")) for part in owners):
            return False
        return last == "__init__" or (not last.startswith(("_", "<")) and not isinstance(_found(self), property))


@dataclass(frozen=True, slots=True)
class Call:
    """A call from one package into another; `caller` is a package, or what stands outside endpick."""

    caller: str
    callee: Function


@dataclass(frozen=True, slots=True)
class Stack:
    """The functions of endpick on the call stack, from the outermost to the one just called."""

    functions: tuple[Function, ...]
    root: int
    """Differs from one call of the outermost function to the next."""


Chain: TypeAlias = tuple[Call, ...]
"""How a call came about: the calls between packages on the stack, from the outermost to the call itself."""


class Observer:
    """Notes the stack at each call from one package into another, while a recording is on."""

    def __init__(self) -> None:
        self._stacks: dict[Stack, None] | None = None
        self._roots: list[FrameType] = []
        self._callbacks_only = False

    def begin(self, *, callbacks_only: bool = False) -> None:
        """Forget what was noted, and note what comes; `callbacks_only` leaves out what tasks and the timers of the process do."""
        self._callbacks_only = callbacks_only
        self._stacks = {}

    def end(self) -> tuple[Stack, ...]:
        """Stop noting; returns what was noted, each stack once."""
        stacks, self._stacks = self._stacks, None
        self._roots.clear()
        return tuple(stacks or ())

    def has_noted(self, name: str) -> bool:
        """Whether a function of this name, with that of its class, was called; for other threads, too."""
        return any(stack.functions[-1].name == name for stack in tuple(self._stacks or ()))

    def profile(self, frame: FrameType, event: str, _argument: object) -> None:
        """For `sys.setprofile`."""
        if event != "call" or self._stacks is None or not _is_shown(frame):
            return
        frames = _frames(frame)
        if not frames or (self._callbacks_only and _in_task()):
            return
        functions = tuple(Function(one.f_globals["__name__"], one.f_code.co_qualname) for one in frames)
        if self._callbacks_only and functions[0].package == _OF_TIMERS:
            return
        if len(functions) == 1 or functions[-1].package != functions[-2].package:
            self._roots.append(frames[0])  # kept, so that no other frame gets its id
            self._stacks.setdefault(Stack(functions, id(frames[0])))


def _is_shown(frame: FrameType) -> bool:
    top, _, rest = str(frame.f_globals.get("__name__", "")).partition(".")
    return top == PLUGINS or (top == "endpick" and bool(rest) and rest.partition(".")[0] not in SHARED)


def _frames(frame: FrameType | None) -> list[FrameType]:
    """Endpick's frames, outermost first; none while something is imported, for generated code, and for what a line in the log calls."""
    frames: list[FrameType] = []
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if (module, frame.f_code.co_qualname) == _RUNS_THE_LOOP:
            break
        generated = frame.f_code.co_filename.startswith("<")
        if module == "logging" or (generated and not frames):
            return []
        if _is_shown(frame) and not generated:
            if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
                return []  # the body of a module or of a class
            frames.append(frame)
        frame = frame.f_back
    return frames[::-1]


def _in_task() -> bool:
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


def _found(function: Function) -> object:
    found: object = importlib.import_module(function.module)
    for part in function.name.split("."):
        found = inspect.getattr_static(found, part, None)
    return found


def calls(stacks: Iterable[Stack], outside: str, *, depth: int, repeat: bool = False) -> tuple[Call, ...]:
    """The calls that a picture shows, in the order in which they happened.

    Each call is shown where it first happens. What called it is shown again unless the line above came about in the same way.

    Args:
        stacks: What was observed.
        outside: Name for what calls the outermost functions; their calls are left out when it is empty.
        depth: How many packages away from the outermost one; calls into plugins and by plugins are shown in any case.
        repeat: Show a call by the outermost package once for each way in which that package comes to it.
    """
    shown: list[Call] = []
    known: set[object] = set()
    above: Chain = ()
    above_root = 0
    for stack in stacks:
        chain = _chain(stack, outside)
        last = chain[-1]
        plugin_takes_part = PLUGINS in (last.caller, last.callee.package)
        identity = stack.functions if repeat and len(chain) == 2 else last
        if identity in known or not last.callee.public or (len(chain) - 1 > depth and not plugin_takes_part):
            continue
        known.add(identity)
        same = chain[:-1] == above or stack.root == above_root
        common = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(chain[:-1], above, strict=False)))) if same else 0
        shown += [call for call in chain[common:] if call.callee.public and call.caller]
        above, above_root = chain, stack.root
    return tuple(shown)


def _chain(stack: Stack, outside: str) -> Chain:
    return tuple(_crossings(stack.functions, outside))


def _crossings(functions: tuple[Function, ...], outside: str) -> Iterator[Call]:
    caller = outside
    for at, function in enumerate(functions):
        if not at or function.package != functions[at - 1].package:
            yield Call(caller, function)
        caller = function.package
