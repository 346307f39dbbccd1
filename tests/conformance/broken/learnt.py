"""Plugins that lose what they learnt, or tell it wrongly."""

from __future__ import annotations

import json

import numpy as np

from conformance.broken.register import breaks
from endpick.api import Parameters, PluginContext, PreRequest, Scorer
from endpick.api.fleet import LearntState


class Sparing(Scorer, PreRequest, LearntState):
    """Prefers endpoints that were never picked: without fault."""

    def __init__(self, name: str, parameters: Parameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self.used: set[str] = set()
        self.new: set[str] = set()

    def score(self, request, endpoints, state):
        return np.array([0.0 if endpoint.name in self.used else 1.0 for endpoint in endpoints.members])

    def before_request(self, request, result, headers, state):
        name = result.runs[result.primary].picked.members[0].name
        if name not in self.used:
            self.used.add(name)
            self.new.add(name)

    def snapshot(self):
        yield json.dumps(sorted(self.used)).encode()

    def restore(self, part):
        self.used.update(json.loads(part))

    def drain_deltas(self):
        new, self.new = self.new, set()
        return json.dumps(sorted(new)).encode() if new else b""

    def apply(self, deltas, origin):
        self.used.update(json.loads(deltas))

    def endpoint_removed(self, name):
        self.used.discard(name)


@breaks("snapshot_restores_decisions", "after `restore`, it decides differently")
class Forgetful(Sparing):
    """Leaves everything out of its snapshot."""

    def snapshot(self):
        yield b"[]"


@breaks("deltas_apply_in_any_order", "the order or a repetition of deltas changes its decisions")
class Adding(Sparing):
    """Counts every delta, also a repeated one."""

    def apply(self, deltas, origin):
        self.used ^= set(json.loads(deltas))


@breaks("drains_once", "`drain_deltas` tells the same again")
class Repeating(Sparing):
    """Never forgets what it has told."""

    def drain_deltas(self):
        return json.dumps(sorted(self.new)).encode() if self.new else b""
