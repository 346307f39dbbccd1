"""Spares a process of endpick what libraries would do when they are imported, and endpick has no use for."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

_COLLECTED_AT = 100_000
"""So many new objects are searched for garbage; a serving process has a number of its own."""


def spare() -> None:
    """For a process of the command line, before it imports anything heavy; what the environment says stays."""
    # numpy starts a thread for each core and keeps memory for it, for products of matrices; endpick multiplies none.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # pydantic would read the metadata of every distribution, and import what calls itself its plugin before the configuration is read.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    _open_when_used("prometheus_client")
    # What a verb imports stays until it ends, and the collector would look at all of it again and again: a tenth of what `validate` costs.
    gc.set_threshold(_COLLECTED_AT)


def _open_when_used(name: str) -> None:
    """Have a package's own module run when something of it is asked for, and not when a module inside it is imported.

    `prometheus_client` has web servers and a client for its push gateway, and imports those of the standard library for them. endpick
    imports the modules that hold its metrics; a plugin that says `from prometheus_client import Counter` gets the whole.
    """
    spec = PathFinder.find_spec(name)
    if name in sys.modules or spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    loader, lock = spec.loader, threading.RLock()

    def first_use(attribute: str) -> object:
        if PathFinder.find_spec(f"{name}.{attribute}", spec.submodule_search_locations) is not None:
            return importlib.import_module(f"{name}.{attribute}")  # as `from . import values`, with which modules inside the package begin
        with lock:
            if module.__dict__.pop("__getattr__", None) is not None:
                loader.exec_module(module)
        return getattr(module, attribute)

    module.__dict__["__getattr__"] = first_use
    sys.modules[name] = module
