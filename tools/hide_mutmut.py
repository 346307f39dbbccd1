"""A pytest plugin for mutation runs: keeps the frames that mutmut adds out of the tracebacks that tests compare word for word."""

from __future__ import annotations

from pathlib import Path

import mutmut

from endpick.plugins import importing

importing._NOT_THEIRS = (*importing._NOT_THEIRS, str(Path(mutmut.__file__).parent))
