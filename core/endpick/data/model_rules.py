"""Priorities of inference objectives, and rewrites of model names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from endpick.api.discovery import ModelRewrite, ModelTarget

RewriteTable: TypeAlias = Mapping[str, tuple[ModelTarget, ...]]
"""Targets by model; those under "" are for every other model."""

NO_REWRITES: RewriteTable = MappingProxyType({})


class ModelRules:
    """The current rules, of the configuration and of the discovery."""

    __slots__ = ("_configured", "_found", "objectives", "rewrites")

    def __init__(self) -> None:
        self.objectives: Mapping[str, int] = {}
        self.rewrites: RewriteTable = NO_REWRITES
        """Compiled; for a model with two rules, that of the configuration counts."""
        self._configured: tuple[ModelRewrite, ...] = ()
        self._found: tuple[ModelRewrite, ...] = ()

    def configure(self, rewrites: Iterable[ModelRewrite]) -> None:
        """Set the rules of the configuration."""
        self._configured = tuple(rewrites)
        self.rewrites = compile_rewrites((*self._configured, *self._found))

    def discovered(self, rewrites: Iterable[ModelRewrite]) -> None:
        """Set the rules of the discovery."""
        self._found = tuple(rewrites)
        self.rewrites = compile_rewrites((*self._configured, *self._found))


def compile_rewrites(rewrites: Iterable[ModelRewrite]) -> RewriteTable:
    """Index rules by model; the first rule of a model counts. Rules without targets are left out."""
    table: dict[str, tuple[ModelTarget, ...]] = {}
    for rule in rewrites:
        for model in rule.models if rule.targets else ():
            table.setdefault(model, rule.targets)
        if rule.targets and not rule.models:
            table.setdefault("", rule.targets)
    return table


def choose_model(table: RewriteTable, model: str, draw: float) -> str:
    """Choose a target for a model by weight; "" if no rule applies.

    Args:
        table: From `compile_rewrites`.
        model: The requested model; empty if the client named none.
        draw: A uniformly distributed number in [0, 1).
    """
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
