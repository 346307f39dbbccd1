"""Where a process of the command line begins: what is set before anything else is imported."""

from __future__ import annotations

import gc
import os
import sys

_COLLECTED_AT = 100_000
"""So many new objects are searched for garbage; a serving process has a number of its own."""


def main() -> None:
    """The `endpick` command and `python -m endpick`; for a process of its own."""
    hold_standard_descriptors()
    leave_unsafe_path()
    if sys.argv[1:2] == ["serve"]:
        from endpick.serve.early_signals import EARLY_SIGNALS  # after the path is safe, before all that takes time

        EARLY_SIGNALS.listen()
    spare_imports()
    from endpick.cli.main import main as verbs  # after the path is safe, because it imports click

    verbs()


def hold_standard_descriptors() -> None:
    """Open what the process was started without of input, output and error output, as nothing.

    The next connection would get the number otherwise, and what is written there, such as the log, would go to its client.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free, so it is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False))  # noqa: SIM115


def leave_unsafe_path() -> None:
    """Take away what Python puts first on the path by itself: the working directory, or the directory of the `endpick` script.

    Plugins are installed, so nothing of endpick is looked for there, and a user who can write into that directory would otherwise choose
    which modules run. The same directory given by PYTHONPATH stays, because an operator asked for it.
    """
    if not sys.flags.safe_path and sys.path and sys.path[0] in (os.getcwd(), _script_directory()):  # noqa: PTH109 - as Python made it
        del sys.path[0]


def _script_directory() -> str:
    return os.path.dirname(os.path.realpath(sys.argv[0]))  # noqa: PTH120 - as Python made it


def spare_imports() -> None:
    """Spare a process what libraries would do when they are imported, and endpick has no use for; else what the environment says stays.

    Called before anything heavy is imported.
    """
    # numpy starts a thread for each core and keeps memory for it, for products of matrices; endpick multiplies none.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # pydantic would read the metadata of every distribution, and import what calls itself its plugin before the configuration is read.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # prometheus_client would keep each metric in a file of that folder, for processes that share a page: where there is no such folder it
    # would fail at the first metric, and where the disk is full it would end the process.
    for name in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
        os.environ.pop(name, None)
    # What a verb imports stays until it ends, and the collector would look at all of it again and again: a tenth of what `validate` costs.
    gc.set_threshold(_COLLECTED_AT)
