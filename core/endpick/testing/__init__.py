"""The conformance kit and the fixtures with which plugin authors test their plugins.

In a test file of a plugin:

```python
from endpick.testing import parametrize_conformance

@parametrize_conformance([LatencyScorer])
def test_conformance(check):
    check()
```

The same kit without pytest: `conformance(LatencyScorer)`, or `endpick test acme.latency-scorer`. Fixtures are in
`endpick.testing.pytest_plugin`, hypothesis strategies in `endpick.testing.strategies`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from endpick.testing.check import Check, Finding
    from endpick.testing.host import Host
    from endpick.testing.kit import Outcome, Report, Status, all_checks, conformance
    from endpick.testing.parametrize import parametrize_conformance
    from endpick.testing.pools import make_pool

__all__ = (
    "Check",
    "Finding",
    "Host",
    "Outcome",
    "Report",
    "Status",
    "all_checks",
    "conformance",
    "make_pool",
    "parametrize_conformance",
)

# pytest imports this package in every session of an environment that has endpick, so it may cost nothing.
_HOMES = {
    "Check": "check",
    "Finding": "check",
    "Host": "host",
    "Outcome": "kit",
    "Report": "kit",
    "Status": "kit",
    "all_checks": "kit",
    "conformance": "kit",
    "make_pool": "pools",
    "parametrize_conformance": "parametrize",
}


def __getattr__(name: str) -> object:
    """Import what is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
