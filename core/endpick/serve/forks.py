"""What becomes of processes that plugins fork: they neither serve, nor hold ports and connections, nor take signals for endpick.

`multiprocessing` forks on Linux, and so may any plugin. Such a child has all that the process had: what listens on the ports, so that no
other process could after the end of this one; connections, whose clients would not see them end; handlers that keep SIGTERM from ending
it; and the event loop, which it would run on beside its parent where it came back from the plugin's call, by an exception for instance.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from endpick.diagnostics import ExitCode
from endpick.transport.address import PORTS

_DESCRIPTORS = "/dev/fd"


@dataclass(slots=True)
class _Serving:
    """What this process serves with, if it does."""

    loop: asyncio.AbstractEventLoop | None = None
    handlers: Mapping[int, object] = field(default_factory=dict)
    is_registered: bool = False


_SERVING = _Serving()


def children_do_not_serve(loop: asyncio.AbstractEventLoop, handlers: Mapping[int, object]) -> None:
    """From now on what is forked leaves the service, until `forget` is called.

    Args:
        loop: A child that comes back to it ends.
        handlers: Of signals, by number: a child has those of the system instead.
    """
    _SERVING.loop, _SERVING.handlers = loop, dict(handlers)
    if not _SERVING.is_registered:
        _SERVING.is_registered = True
        os.register_at_fork(after_in_child=_leave)


def forget() -> None:
    """This process does not serve any more."""
    _SERVING.loop, _SERVING.handlers = None, {}


def _leave() -> None:
    """In the child, before the code that has forked goes on."""
    loop, handlers = _SERVING.loop, _SERVING.handlers
    forget()
    if loop is None:
        return
    with suppress(ValueError):
        signal.set_wakeup_fd(-1)  # it leads to the parent's event loop as well
    for number, handler in handlers.items():
        with suppress(ValueError, OSError):
            if signal.getsignal(number) == handler:
                signal.signal(number, signal.SIG_DFL)
    _let_go_of_ports()
    loop.set_exception_handler(lambda _loop, _context: os._exit(ExitCode.FAILED))
    with suppress(RuntimeError):  # it is closed
        loop.call_soon(os._exit, ExitCode.FAILED)


def _let_go_of_ports() -> None:
    """Put nothing in the place of each socket of endpick's ports; the numbers stay taken, for objects that would close others' later."""
    with suppress(OSError):
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208 - names are enough
            if _is_of_a_port(int(name)):
                os.dup2(nothing, int(name), inheritable=False)
        os.close(nothing)


def _is_of_a_port(descriptor: int) -> bool:
    try:
        looked_at = socket.socket(fileno=descriptor)
    except OSError:  # it is none
        return False
    try:
        return looked_at.family in (socket.AF_INET, socket.AF_INET6) and looked_at.getsockname()[1] in PORTS
    except OSError:
        return False
    finally:
        looked_at.detach()
