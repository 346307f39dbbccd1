"""What the demo tries: a configuration of its own or the visitor's, and the one it is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

from endpick.demo.stack import ENDPOINTS_FILE
from endpick.planning.plan import Plan


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration as the demo hands it to `endpick serve`."""

    name: str
    """What the report calls it."""
    text: str


def built_in(name: str) -> Configuration:
    """One of the demo's own: `prefix-aware` or `random-picker`."""
    return Configuration(name, (resources.files("endpick.demo") / f"{name}.yaml").read_text())


def why_unfit(plan: Plan) -> str | None:
    """Why a plan cannot find the demo's model servers; None when it can."""
    discovery = None if plan.discovery is None else plan.by_name[plan.discovery]
    if discovery is not None and discovery.type == "file-discovery" and getattr(discovery.parameters, "path", "") == ENDPOINTS_FILE:
        return None
    return f"the demo lists its model servers in '{ENDPOINTS_FILE}'; name a file-discovery with that path under dataLayer.discovery"
