"""A distribution of plugins that do wrong when they are told to, and how they are told: for attempts of the class `plugins`."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.attempts.catalogue import Target
from benchmarks.attempts.culprits.misdeeds import SHARED_BYTES, Orders

_FOLDER = Path(__file__).with_name("culprits")
_SOURCES = {path.name: path.read_text() for path in sorted(_FOLDER.glob("*.py"))}
_CLASSES = re.findall(r"^class (\w+)\(Culprit, ", _SOURCES["culprits.py"], re.MULTILINE)
_TYPES = {f"culprit.{re.sub('(?<!^)(?=[A-Z])', '-', name).lower()}": name for name in _CLASSES}
_ENTRIES = "".join(f"{kind} = culprits.culprits:{name}\n" for kind, name in _TYPES.items())
_HOOKS = "culprit.hooks = culprits.culprits:Hooks\n"
FILES: Mapping[str, str] = {
    "act": "\0" * SHARED_BYTES,
    **{f"site/culprits/{name}": text for name, text in _SOURCES.items()},
    "site/culprits-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: culprits\nVersion: 1.0\nRequires-Dist: endpick\n",
    "site/culprits-1.0.dist-info/entry_points.txt": f"[endpick.plugins.v1]\n{_ENTRIES}[endpick.hooks.v1]\n{_HOOKS}",
}

_NAMES = [name for name in _TYPES if name != "culprit.finder"]
CONFIG = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
hooks: [{{name: culprit.hooks}}]
plugins:
- type: siege.beat
{plugins}
requestHandler: {{parsers: [{{pluginRef: culprit.reader}}]}}
schedulingProfiles:
- name: default
  plugins:
  - {{pluginRef: siege.beat}}
  - {{pluginRef: culprit.sieve}}
  - {{pluginRef: culprit.judge}}
  - {{pluginRef: culprit.hand}}
flowControl:
  enableEviction: true
  saturationDetector: {{pluginRef: culprit.gauge}}
  usageLimitPolicyPluginRef: culprit.ceiling
  defaultPriorityBand: {{fairnessPolicyRef: culprit.fair, orderingPolicyRef: culprit.order}}
dataLayer:
  injectDefaults: false
  discovery: {{pluginRef: {discovery}}}
  sources:
  - {{pluginRef: culprit.asker, collectors: [{{pluginRef: culprit.writer}}]}}
  - {{pluginRef: culprit.stream, collectors: [{{pluginRef: culprit.writer}}]}}
  - {{pluginRef: culprit.pool-asker, collectors: [{{pluginRef: culprit.writer}}]}}
  - {{pluginRef: culprit.pool-stream, collectors: [{{pluginRef: culprit.writer}}]}}
  - {{pluginRef: culprit.events, collectors: [{{pluginRef: culprit.writer}}]}}
"""


def config(salt: int = 0, discovery: str = "endpoints") -> str:
    """All of them in one configuration, each to be skipped where it fails."""
    names = _NAMES if discovery == "endpoints" else _TYPES
    found = "- {name: endpoints, type: file-discovery, parameters: {path: endpoints.yaml, watchFile: true}}\n"
    plugins = (found if discovery == "endpoints" else "") + "\n".join(
        f"- {{type: {name}, onFault: FailOpen, parameters: {{{_salted(name, salt)}}}}}" for name in names
    )
    return CONFIG.format(plugins=plugins, discovery=discovery)


def _salted(name: str, salt: int) -> str:
    """A parameter that makes it another instance."""
    return f"maxPrompts: {4096 + salt}" if name == "culprit.reader" else f"salt: {salt}"


_ORDERS: dict[str, Iterator[tuple[str, str]]] = {}
_PATIENCE_SECONDS = 6.0


def _pairs(target: Target, places: Sequence[str], acts: Iterable[str], without: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Every place with every act, in another order each time, without an end; what was begun goes on at the next call."""
    key = " ".join(places)
    if key not in _ORDERS:
        found = [(place, what) for place in places for what in acts if what not in without.get(place, ())]
        target.rng.shuffle(found)
        _ORDERS[key] = itertools.cycle(found)
    return _ORDERS[key]


async def go_through(
    target: Target,
    places: Sequence[str],
    acts: Iterable[str],
    without: Mapping[str, Sequence[str]] | None = None,
    times: int = 2,
    prompt: Callable[[], Awaitable[None]] | None = None,
    loses: bool = False,
) -> list[str]:
    """Have each place do each act, one pair after the other until the time is up.

    Args:
        target: the picker.
        places: where the plugins ask `misdeeds`; `*` is everywhere.
        acts: what they are to do.
        without: acts that are right answers at a place, and would be followed.
        times: how often a pair is to happen before the next one does.
        prompt: what has the place called, where requests do not.
        loses: whether requests are refused by what is promised.

    Returns:
        Places that were never called, for then the attempt was none, and what had requests refused.
    """
    found = []
    refused = _refused(target)
    orders = Orders(target.folder / "act")
    while target.seconds_left() > 1:
        place, what = next(_pairs(target, places, acts, without or {}))
        orders.give(f"{place} {what}")
        until = time.monotonic() + min(_PATIENCE_SECONDS, target.seconds_left())
        while orders.done < times and time.monotonic() < until:
            if prompt is not None:
                await prompt()
            await asyncio.sleep(0.02)
        if not orders.done and target.seconds_left() > 1:
            found.append(f"{place} was never called to {what}")
        if not loses and (now := _refused(target)) > refused:
            found.append(f"{now - refused:.0f} requests were refused while {place} did {what}")
            refused = now
    orders.give("")
    return found


def _refused(target: Target) -> float:
    """How many requests endpick has answered with an error itself."""
    with urllib.request.urlopen(f"http://127.0.0.1:{target.metrics_port}/metrics", timeout=5) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("llm_d_epp_request_error_total{"))


_SALTS = itertools.count(1)


def reload(target: Target, discovery: str = "endpoints") -> None:
    """Have all of them built anew."""
    (target.folder / "config.yaml").write_text(config(next(_SALTS), discovery))
    os.kill(target.pid, signal.SIGHUP)
