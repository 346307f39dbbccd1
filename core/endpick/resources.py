"""Where files that are no Python modules are: in the installed package, or in the repository it was installed from in editable mode."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent


def resource(name: str) -> Path:
    """The folder of that name at the root of the repository; a wheel carries it under `endpick/_data`.

    Raises:
        FileNotFoundError: neither place has it.
    """
    for place in (_PACKAGE / "_data" / name, _PACKAGE.parents[1] / name):
        if place.is_dir():
            return place
    raise FileNotFoundError(f"'{name}' is neither in {_PACKAGE / '_data'} nor in {_PACKAGE.parents[1]}; reinstall endpick")
