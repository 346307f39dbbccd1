"""Pickers that learn and tell each other, without sockets."""

from __future__ import annotations

import itertools
import json

import numpy as np

from endpick.api import Parameters, PluginContext, Scorer
from endpick.api.fleet import LearntState
from endpick.fleet.exchange import Exchange
from endpick.host.instance import build
from endpick.host.telemetry import NullTelemetry
from endpick.testing.bench import Clock
from plugin_classes import load_class


class Counting(Scorer[Parameters], LearntState):
    """Counts words that it is told, and the load of each picker."""

    def __init__(self, name, parameters, context):
        super().__init__(name, parameters, context)
        self.words: set[str] = set()
        self.new: list[str] = []
        self.loads: dict[str, int] = {}

    def score(self, request, endpoints, state):
        return np.ones(len(endpoints))

    def learn(self, word):
        self.words.add(word)
        self.new.append(word)

    def snapshot(self):
        for word in sorted(self.words):
            yield json.dumps([word]).encode()

    def restore(self, part):
        self.words.update(json.loads(part))

    def drain_deltas(self):
        new, self.new = self.new, []
        return json.dumps(new).encode() if new else b""

    def apply(self, deltas, origin):
        told = json.loads(deltas)
        self.words.update(told)
        self.loads[origin] = self.loads.get(origin, 0) + len(told)

    def origin_gone(self, origin):
        self.loads.pop(origin, None)


class Learner:
    """One picker."""

    numbers = itertools.count()

    def __init__(self, name="", plugin=Counting, clock=None):
        self.clock = clock or Clock()
        self.exchange = Exchange(name or f"picker-{next(self.numbers)}", self.clock, NullTelemetry())
        self.plugin = self.replace(plugin)

    def replace(self, plugin=Counting):
        """Go on with a new instance, as after a reload."""
        loaded = load_class(plugin).loaded
        assert loaded is not None
        self.instance = build(loaded, "counting", Parameters(), None, PluginContext(clock=self.clock, is_shared=True))
        self.exchange.follow([self.instance])
        self.plugin = self.instance.plugin
        return self.plugin

    def tell(self, *others, word=""):
        """Learn a word, and send what is new."""
        if word:
            self.plugin.learn(word)
        message = self.exchange.drain()
        for other in others if message else ():
            other.exchange.receive(message)
        return message
