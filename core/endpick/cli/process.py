"""Where a process of the command line begins: takes the working directory off the import path before anything else is imported."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """The `endpick` command and `python -m endpick`; for a process of its own."""
    leave_unsafe_path()
    from endpick.cli.main import main as verbs  # after the path is safe, because it imports click

    verbs()


def leave_unsafe_path() -> None:
    """Take away what Python puts first on the path by itself: the working directory, or the directory of the `endpick` script.

    Plugins are installed, so nothing of endpick is looked for there, and a user who can write into that directory would otherwise choose
    which modules run. The same directory given by PYTHONPATH stays, because an operator asked for it.
    """
    if not sys.flags.safe_path and sys.path and sys.path[0] in (os.getcwd(), _script_directory()):  # noqa: PTH109 - as Python made it
        del sys.path[0]


def _script_directory() -> str:
    return os.path.dirname(os.path.realpath(sys.argv[0]))  # noqa: PTH120 - as Python made it
