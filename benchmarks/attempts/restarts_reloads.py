"""What a reload brings: configurations of thousands of parts, with hostile names, and files that are swapped as Kubernetes swaps them."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import urllib.request
from collections.abc import Iterable

from benchmarks.attempts.catalogue import CONFIG, Attempt, Target
from benchmarks.attempts.gateway import request
from benchmarks.attempts.restarts import write
from benchmarks.attempts.second import asked, refused
from benchmarks.attempts.streams import exchanged

_HEAD, _, _TAIL = CONFIG.partition("plugins:\n")
_PROFILE = "  plugins: [{pluginRef: siege.beat}, {pluginRef: queue-scorer}, {pluginRef: max-score-picker}]\n"
_RELOADS = "endpick_config_reloads_total"
_LEARNT = 'endpick_memory_held_bytes{use="learnt"}'
_SALTS = itertools.count()
_MANY = 2900
"""Of each part as many as the limits of a configuration let in."""


def _with_plugins(entries: str) -> str:
    return f"{_HEAD}plugins:\n{entries}{_TAIL}"


def _unused(count: int, salt: int = 0) -> str:
    return _with_plugins("".join(f"- {{name: q{index}, type: queue-scorer, parameters: {{}}}}\n" for index in range(salt, salt + count)))


def _thousands() -> dict[str, str]:
    """Configurations by what there are thousands of."""
    handler = "- {type: header-profile-handler, parameters: {defaultProfile: default}}\n"
    profiles = "".join(f"- name: p{index}\n  plugins: [{{pluginRef: queue-scorer}}]\n" for index in range(_MANY))
    bands = "".join(f"  - {{priority: {index}}}\n" for index in range(3 * _MANY))
    models = "".join(f"- {{name: m{index}, targets: [{{model: a{index}}}, {{model: b{index}}}]}}\n" for index in range(_MANY // 2))
    parts = "".join(f"  - {{pluginRef: q{index}}}\n" for index in range(1400))
    return {
        "plugins": _unused(_MANY),
        "other plugins": _unused(_MANY, 10_000),
        "profiles": _with_plugins(handler).replace("schedulingProfiles:\n", f"schedulingProfiles:\n{profiles}"),
        "scorers": _unused(1400)
        .replace("schedulingProfiles:\n", f"schedulingProfiles:\n- name: wide\n  plugins:\n{parts}")
        .replace("plugins:\n", f"plugins:\n{handler}", 1),
        "objectives": CONFIG + "objectives:\n" + "".join(f"- {{name: o{index}, priority: {index}}}\n" for index in range(_MANY)),
        "models": CONFIG + "models:\n" + models,
        "bands": CONFIG + "featureGates: [flowControl]\nflowControl:\n  priorityBands:\n" + bands,
        "mistakes": _unused(_MANY).replace("parameters: {}", "parameters: {no: 1}"),
        "unknown types": _unused(_MANY).replace("type: queue-scorer, parameters", "type: queue-scorer-of-no-plugin, parameters"),
    }


def _metric(target: Target, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{target.metrics_port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


async def _reloaded(target: Target, text: str, before: float) -> float:
    """Have it read this configuration; how many reloads there were then."""
    write(target.folder / "config.yaml", text)
    os.kill(target.pid, signal.SIGHUP)
    now = before
    for _ in range(200):
        await asyncio.sleep(0.1)
        now = await asyncio.to_thread(_metric, target, _RELOADS)
        if now > before:
            break
    return now


async def configurations_of_thousands(target: Target) -> Iterable[str]:
    """Reloads bring thousands of plugins, profiles, scorers, objectives, models, bands, mistakes or unknown types, and take them away."""
    made = _thousands()
    count = await asyncio.to_thread(_metric, target, _RELOADS)
    for name in target.rng.sample([*made], len(made)):
        if target.seconds_left() < 0.5:
            break
        count = await _reloaded(target, made[name], count)
        if target.rng.randrange(2):
            count = await _reloaded(target, CONFIG, count)
    await _reloaded(target, CONFIG, count)
    return refused([await asked(target.ext_proc_port, seconds=20)], "after reloads of thousands")


_NAMES = (
    "." * 50_000,
    "a." * 50_000 + "a",
    "x" * 200_000,
    '\x1b]0;owned\x07\r\n{"level":"critical"}',
    "root",
    "endpick.serve",
    "\u202egnp\u2028\u0000",
    "\ud7ff\uffff\U000e0041",
    "%s%(x)n{0}$HOME",
    'a"b\\c\nd',
    " ",
    "uncaught",
)


async def names_that_are_hostile(target: Target) -> Iterable[str]:
    """Instances, profiles, objectives and models whose names are 50,000 dots, lines, commands of terminals, formats, or loggers' names."""
    count = await asyncio.to_thread(_metric, target, _RELOADS)
    for name in target.rng.sample(_NAMES, len(_NAMES)):
        if target.seconds_left() < 0.5:
            break
        quoted = json.dumps(name)
        instance = f"- {{name: {quoted}, type: queue-scorer}}\n"
        for text in (
            _with_plugins(instance).replace("- pluginRef: siege.beat", f"- pluginRef: siege.beat\n  - pluginRef: {quoted}"),
            CONFIG.replace("name: default", f"name: {quoted}"),
            CONFIG + f"objectives: [{{name: {quoted}, priority: 1}}]\nmodels: [{{name: {quoted}, targets: [{{model: {quoted}}}]}}]\n",
        ):
            count = await _reloaded(target, text, count)
    await _reloaded(target, CONFIG, count)
    return refused([await asked(target.ext_proc_port, seconds=20)], "after hostile names")


def _many_prompts(target: Target, model: int) -> bytes:
    """A body of 900 prompts, each with blocks of its own."""
    prompts = (target.rng.randbytes(100).hex() for _ in range(900))
    return b'{"model":"%d","prompt":%s}' % (model, json.dumps([*prompts]).encode())


async def indexes_that_reloads_leave_behind(target: Target) -> Iterable[str]:
    """Prompts fill a prefix index, and a reload replaces it by another, again and again: each stays for requests under way, in 150 MiB."""
    told: list[str] = []
    count = await asyncio.to_thread(_metric, target, _RELOADS)
    for _ in range(8):
        if target.seconds_left() < 0.5:
            break
        for _ in range(3):
            bodies = [_many_prompts(target, each) for each in range(8)]
            filling = (exchanged(target.ext_proc_port, [request(body) for body in bodies], 2.5) for _ in range(4))
            await asyncio.gather(*filling, return_exceptions=True)
        await asyncio.sleep(1.1)  # so often is it asked
        learnt = await asyncio.to_thread(_metric, target, _LEARNT)
        capacity = 40_000 + next(_SALTS)
        parameters = f"lruCapacityPerServer: {capacity}, blockSizeTokens: 16"
        producer = f"- {{type: approx-prefix-cache-producer, parameters: {{{parameters}}}}}\n"
        count = await _reloaded(target, _with_plugins(producer), count)
        await asyncio.sleep(1.1)
        if await asyncio.to_thread(_metric, target, _LEARNT) < learnt / 2:
            told = ["what a reload has left behind is not accounted for any more"]
    return [*told, *refused([await asked(target.ext_proc_port, seconds=20)], "after reloads that left indexes behind")]


ATTEMPTS = (
    Attempt(configurations_of_thousands),
    Attempt(names_that_are_hostile),
    Attempt(indexes_that_reloads_leave_behind, flags=("--max-memory=150Mi", "--finish-timeout=30s")),
)
