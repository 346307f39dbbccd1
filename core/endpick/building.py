"""How this endpick was built: the request path as Python wrote it, or compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

RequestPath = Literal["compiled", "interpreted"]


def request_path() -> RequestPath:
    """Which of the two runs here; told by the files beside the sources, importing none of them."""
    return "compiled" if any(Path(__file__).parent.glob("extproc/session.*.so")) else "interpreted"
