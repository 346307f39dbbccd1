"""Endpoints whose names, addresses and labels are none, however a discovery comes to hear of them."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterable

from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.kept import page_of
from benchmarks.attempts.posing import write_endpoints
from benchmarks.attempts.second import asked, refused

_ZONES = (
    *("\ud800", "\r\nx-other: 1", "a,10.0.0.1:80", "a b", "\u202e", "z" * 3000, "\0", "\ue000\ud83d", "\xe9", "..", '"', "[", "]", "eth0"),
    *("\x1b[2J", "\u2028", "lo\n", "25lo", "#", "?", "@x", ":", ";"),
)
_TEXTS = (
    *("\ud800", "\udc80", "\ud83d", '\r\n{"level": "critical"}', "\u2028", "\0", "n" * 3000, "=", "{}", '"', "\\", "\xc9", "E\u0301"),
    *("e0", "E0", "\x1b[2J", "a/b", " ", ",", "\ufeff", "\U000e0001"),
)
_NUMBERS = itertools.count()


async def addresses_with_zones(target: Target) -> Iterable[str]:
    """Endpoint files with IPv6 addresses whose zones hold line ends, halves of characters, commas, brackets, or thousands of letters."""
    entries: list[dict[str, object]] = [
        {"name": f"z{n}", "address": f"{ip}%{zone}", "port": str(target.model_server_port)}
        for n, (zone, ip) in enumerate(itertools.product(_ZONES, ("fe80::1", "::1")))
    ]
    return await _entries(target, entries)


async def names_and_labels_of_halves(target: Target) -> Iterable[str]:
    """Endpoint files whose names, namespaces and labels are halves of characters, line ends, NUL, equal but for case, or long."""
    entries: list[dict[str, object]] = []
    for n, text in enumerate(_TEXTS):
        labels = {text[:100]: text, "llm-d.ai/role": text}
        entries.append({"name": text, "address": f"127.0.99.{n + 1}", "port": str(target.model_server_port)})
        entries.append({**entries[-1], "name": f"l{n}", "namespace": text, "address": f"127.0.99.{n + 101}", "labels": labels})
    return await _entries(target, entries)


async def _entries(target: Target, entries: list[dict[str, object]]) -> list[str]:
    """Some beside those that behave, and then all: requests get their pick, and an endpoint that comes later is seen."""
    found = []
    for chosen in (target.rng.sample(entries, 1), entries):
        for number in range(2):
            name = f"later{next(_NUMBERS)}"
            later = {"name": name, "address": "127.0.99.250", "port": str(target.model_server_port)}
            write_endpoints(target, *(f"- {json.dumps(each)}\n" for each in (*chosen, later)))
            await asyncio.sleep(1.5)
            found += refused([await asked(target.ext_proc_port) for _ in range(60)], f"beside {str(chosen[0])[:80]}")
            if "llm_d_epp_ready_endpoints" not in await page_of(target):
                found.append(f"the page of metrics is none beside {str(chosen[0])[:80]}")
            if number and f"default/{name}" not in (target.folder / "log").read_text():
                found.append(f"an endpoint that came later was not seen beside {str(chosen[0])[:80]} and {len(chosen) - 1} more")
    write_endpoints(target)
    return found


ATTEMPTS = (
    Attempt(addresses_with_zones),
    Attempt(names_and_labels_of_halves),
)
