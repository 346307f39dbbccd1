"""Plugin classes made on the spot, and what the loader says of them."""

from __future__ import annotations

import sys

import numpy as np

from endpick.api import Parameters, Scorer
from endpick.host.discovery import Candidate
from endpick.host.loader import Loading, load
from endpick.host.resolution import Reference


def scorer_class(parameters: object = Parameters, **facts: object) -> type[Scorer[Parameters]]:
    """A sound scorer class with these parameters, and these facts as its attributes."""

    class AcmeScorer(Scorer[parameters]):
        """All endpoints are equal."""

        def score(self, request, endpoints, state):
            return np.ones(len(endpoints))

    for name, value in facts.items():
        setattr(AcmeScorer, name, value)
    return AcmeScorer


def load_class(plugin: object, plugin_type: str = "acme.scorer") -> Loading:
    """What the loader makes of an object that an entry point leads to."""
    module = sys.modules[__name__]
    module.offered = plugin
    candidate = Candidate(plugin_type, 1, "acme", "1.0", f"{__name__}:offered", "/site/acme-1.0.dist-info")
    return load(candidate, Reference(plugin_type))
