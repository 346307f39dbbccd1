"""Endpoints whose names, addresses and labels are none, however a discovery comes to hear of them."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import struct
from collections.abc import Iterable

from benchmarks.attempts.catalogue import CONFIG, Attempt, Target
from benchmarks.attempts.kept import page_of
from benchmarks.attempts.posing import hostile_entries, write_endpoints
from benchmarks.attempts.second import asked, refused
from benchmarks.attempts.servers_discovery import DISCOVERY, by_name, good_records, message, name_server, record

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


_MOST = 20


async def discoveries_that_take_turns(target: Target) -> Iterable[str]:
    """Reloads change between a file, a list and a name server, whose answers differ each time, beside 200 others, where 20 may be."""
    port = target.model_server_port
    files = [CONFIG, CONFIG.replace("watchFile: true", "watchFile: false"), by_name("SRV")]
    listed = ", ".join(f"{{name: e{n}, address: 127.0.100.{100 + n}, port: {port}}}" for n in range(12))
    files.append(CONFIG.replace(DISCOVERY, f"- {{name: endpoints, type: static-discovery, parameters: {{endpoints: [{listed}]}}}}"))
    good, asked_for = good_records(port), itertools.count()

    def answer(question: bytes) -> list[bytes]:
        number = next(asked_for)
        more = []
        for n in range(6):
            name = bytes((3, *(b"gh"[(number + n) % 2 : (number + n) % 2 + 1]), 97 + n, 48 + number % 10)) + b"\0"
            more += [
                record(33, struct.pack("!HHH", n, number % 7, port) + name),
                record(1, bytes((127, 0, 95, 1 + (number * 6 + n) % 250)), name),
            ]
        return [message(question, good + more)] if number % 5 else []

    serving_names = asyncio.create_task(name_server(600, answer, lambda _: b""))
    answers = []
    try:
        while target.seconds_left() > 3:
            others = hostile_entries(port, 200, target.rng.randrange(1000))
            write_endpoints(target, others if target.rng.random() < 0.5 else "")
            (target.folder / "config.yaml").write_text(target.rng.choice(files))
            os.kill(target.pid, signal.SIGHUP)
            for _ in range(10):
                answers.append(await asked(target.ext_proc_port))
                await asyncio.sleep(0.04)
    finally:
        write_endpoints(target)
        (target.folder / "config.yaml").write_text(CONFIG)
        os.kill(target.pid, signal.SIGHUP)
        await asyncio.sleep(2)
        serving_names.cancel()
        await asyncio.gather(serving_names, return_exceptions=True)
    found = refused(answers, "while discoveries took turns")
    if not re.search(r"^llm_d_epp_ready_endpoints\S* 12\.0$", await page_of(target), re.MULTILINE):
        found.append("the pool is not what the file says in the end")
    return found


ATTEMPTS = (
    Attempt(discoveries_that_take_turns, (f"--max-endpoints={_MOST}",)),
    Attempt(addresses_with_zones),
    Attempt(names_and_labels_of_halves),
)
