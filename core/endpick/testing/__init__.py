"""The conformance kit and the fixtures with which plugin authors test their plugins.

In a test file of a plugin:

```python
from endpick.testing import parametrize_conformance

@parametrize_conformance([LatencyScorer])
def test_conformance(check):
    check()
```

The same kit without pytest: `conformance(LatencyScorer)`, or `endpick test acme.latency-scorer`.

For tests of plugins:

- `kit`: does a plugin class conform? Start here: `conformance`, `parametrize_conformance`.
- `host`: what does a whole host decide over endpoints that a test describes? Start here: `Host`.
- `made_up`: which pools, requests and values can a test use without writing them down?
- `waiting`: which waiting requests, flows and bands can a test use?
- `pytest_plugin`: which fixtures does pytest find?
- `strategies`: which hypothesis strategies are there?

Inside the kit:

- `check`: what is a check, and how is its time limited?
- `checks`: what is checked of each part of a plugin?
- `plugin_under_test`: which class is tested, and with which parameters?
- `bench`: what does one built instance read, write and report?
- `exercise`: what does the host ask of an instance, and in which order?
- `source_runner`: how does a data source fare with a server that misbehaves?
- `side_effects`: does plugin code block its thread, or leave tasks, threads and sockets behind?

`cli` and the tests of plugins call it. It may import `planning` and every layer below it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from endpick.testing.check import Check, Finding
    from endpick.testing.host import Host
    from endpick.testing.kit import CheckOutcome, CheckStatus, ConformanceReport, all_checks, conformance, parametrize_conformance
    from endpick.testing.made_up import make_pool, make_request
    from endpick.testing.waiting import MadeUpBand, make_waiting

__all__ = (
    "Check",
    "CheckOutcome",
    "CheckStatus",
    "ConformanceReport",
    "Finding",
    "Host",
    "MadeUpBand",
    "all_checks",
    "conformance",
    "make_pool",
    "make_request",
    "make_waiting",
    "parametrize_conformance",
)

# pytest imports this package in every session of an environment that has endpick, so it may cost nothing.
_HOMES = {
    "Check": "check",
    "Finding": "check",
    "Host": "host",
    "CheckOutcome": "kit",
    "ConformanceReport": "kit",
    "CheckStatus": "kit",
    "all_checks": "kit",
    "conformance": "kit",
    "make_pool": "made_up",
    "make_request": "made_up",
    "parametrize_conformance": "kit",
    "MadeUpBand": "waiting",
    "make_waiting": "waiting",
}


def __getattr__(name: str) -> object:
    """Import what is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
