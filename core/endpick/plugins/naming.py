"""The grammar of plugin types: what an entry-point name must look like."""

from __future__ import annotations

import re

TYPE_PATTERN = r"[a-z][a-z0-9]*([.-][a-z0-9]+)*"
"""Lower-case words joined by hyphens or dots: `queue-scorer`, `acme.queue-scorer`."""

_TYPE = re.compile(TYPE_PATTERN, re.ASCII)


def is_valid_type(name: str) -> bool:
    """Whether a plugin type may be called so."""
    return _TYPE.fullmatch(name) is not None
