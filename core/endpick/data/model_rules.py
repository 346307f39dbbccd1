"""Inference objectives and rewrites of model names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from endpick.api.discovery import ModelRewrite, ModelTarget

RewriteTable: TypeAlias = Mapping[str, tuple[ModelTarget, ...]]  # targets by model; "" for other models

NO_REWRITES: RewriteTable = MappingProxyType({})


class ModelRules:
    """Objectives and rewrites. Rewrites of the configuration precede those of the discovery."""

    __slots__ = ("_configured", "_found", "objectives", "rewrites")

    def __init__(self) -> None:
        self.objectives: Mapping[str, int] = {}
        self.rewrites: RewriteTable = NO_REWRITES  # rules of the configuration come first
        self._configured: tuple[ModelRewrite, ...] = ()
        self._found: tuple[ModelRewrite, ...] = ()

    def configure(self, rewrites: Iterable[ModelRewrite]) -> None:
        """Replace the rewrites of the configuration. Called for each deployed plan."""
        self._configured = tuple(rewrites)
        self.rewrites = compile_rewrites((*self._configured, *self._found))

    def discovered(self, rewrites: Iterable[ModelRewrite]) -> None:
        """Replace the rewrites that the discovery reported."""
        self._found = tuple(rewrites)
        self.rewrites = compile_rewrites((*self._configured, *self._found))


def compile_rewrites(rewrites: Iterable[ModelRewrite]) -> RewriteTable:
    """Return the targets by model; the first rule with targets for a model counts."""
    table: dict[str, tuple[ModelTarget, ...]] = {}
    for rule in rewrites:
        for model in rule.models if rule.targets else ():
            table.setdefault(model, rule.targets)
        if rule.targets and not rule.models:
            table.setdefault("", rule.targets)
    return table


def choose_model(table: RewriteTable, model: str, draw: float) -> str:
    """Choose a target by weight; "" if no rule matches. `draw` is uniform in [0, 1)."""
    targets = table.get(model) or table.get("", ())
    total = sum(target.weight for target in targets)
    if not total:
        return targets[int(draw * len(targets))].model if targets else ""
    reached = draw * total
    for target in targets:
        reached -= target.weight
        if reached < 0:
            return target.model
    return targets[-1].model
