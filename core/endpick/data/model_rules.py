"""What is known about models beside endpoints: priorities of objectives, and which model a request is for instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from endpick.api.datalayer import ModelRewrite, ModelTarget

RewriteTable: TypeAlias = Mapping[str, tuple[ModelTarget, ...]]
"""Targets by model; under the empty name those for every other one."""

NO_REWRITES: RewriteTable = MappingProxyType({})


class ModelRules:
    """The rules as they are now. The table owns it, and each request reads it."""

    __slots__ = ("_configured", "_found", "objectives", "rewrites")

    def __init__(self) -> None:
        self.objectives: Mapping[str, int] = {}
        """Priorities by name, as the discovery has found them."""
        self.rewrites: RewriteTable = NO_REWRITES
        """Of the configuration and of the discovery; where both have a rule for one model, that of the configuration."""
        self._configured: tuple[ModelRewrite, ...] = ()
        self._found: tuple[ModelRewrite, ...] = ()

    def configure(self, rewrites: Iterable[ModelRewrite]) -> None:
        """Make these the rules of the configuration."""
        self._configured = tuple(rewrites)
        self.rewrites = compile_rewrites((*self._configured, *self._found))

    def discovered(self, rewrites: Iterable[ModelRewrite]) -> None:
        """Make these the rules of the discovery."""
        self._found = tuple(rewrites)
        self.rewrites = compile_rewrites((*self._configured, *self._found))


def compile_rewrites(rewrites: Iterable[ModelRewrite]) -> RewriteTable:
    """The rules by model; of several for one model the first counts. Rules without targets are left out."""
    table: dict[str, tuple[ModelTarget, ...]] = {}
    for rule in rewrites:
        for model in rule.models if rule.targets else ():
            table.setdefault(model, rule.targets)
        if rule.targets and not rule.models:
            table.setdefault("", rule.targets)
    return table


def choose_model(table: RewriteTable, model: str, draw: float) -> str:
    """The model that a request is for instead, or "" where no rule says anything of it.

    Args:
        table: From `compile_rewrites`.
        model: What the client asked for; empty where it named none.
        draw: At least 0 and less than 1; as weights are to decide, uniformly distributed. Equal draws give equal models.
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
