"""What plugins do beside the event loop: processes that they fork, threads of their own and of the process, code that others look at."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import aiohttp

from benchmarks.attempts.catalogue import CONFIG, Attempt, Target
from benchmarks.attempts.gateway import HELLO, answered, connected, data, opened, request
from benchmarks.attempts.picker import ENDPOINTS
from benchmarks.attempts.posing import answering, hostile_entries, page, serving
from benchmarks.attempts.second import asked, probed, refused, second
from benchmarks.extproc.plan import endpoints_file

_ASIDE = Path(__file__).with_name("culprits").joinpath("aside.py").read_text()
_SITE = {
    "site/aside.py": _ASIDE,
    "site/aside-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: aside\nVersion: 1.0\nRequires-Dist: endpick\n",
    "site/aside-1.0.dist-info/entry_points.txt": "[endpick.plugins.v1]\nacme.aside = aside:Aside\n"
    "acme.restless = aside:Restless\nacme.patient = aside:Patient\n"
    "[endpick.hooks.v1]\nacme.shown = aside:Shown\nacme.again = aside:ShownAgain\n",
}
_CONFIG = CONFIG.replace("plugins:\n", "plugins:\n- {type: acme.aside, onFault: FailOpen}\n", 1).replace(
    "- pluginRef: siege.beat", "- pluginRef: siege.beat\n  - pluginRef: acme.aside"
)
_FEWEST_PAGES = 4
"""The first may come before all is there."""
_LONGEST_SECONDS = 30.0


async def _have_done(port: int, deed: str) -> bytes:
    """A request with which the plugin does this."""
    async with connected(port) as (reader, writer):
        writer.write(HELLO + opened(1) + data(1, request(b'{"model":"m","prompt":"p"}', {"x-deed": deed})))
        return await answered(reader, 2.0, 200)


async def page_of(port: int) -> str:
    """What a scraper reads, which may take it compressed; nothing where it waits for five seconds."""
    with suppress(TimeoutError):
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(5)) as session,
            session.get(f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": "gzip"}) as page,
        ):
            return await page.text()
    return ""


async def children_that_are_forked(target: Target) -> Iterable[str]:
    """A plugin of a second picker forks processes, ends them by signals, has them stay or go on: it serves, and leaves its ports free."""
    found = []
    for deed in ("fork-and-end", "fork-and-hang-up", "fork-for-good", "fork-and-go-on"):
        async with second(target, "--drain-timeout=0s", config=_CONFIG, files=_SITE) as made:
            made.picker.blames = "acme.aside"  # an exception that leaves a child is told by the child as a fault, once
            port = made.picker.ext_proc_port
            for _ in range(3):
                await _have_done(port, deed)
            made.told += refused([await asked(port, seconds=3) for _ in range(20)], f"after a plugin had done {deed}")
            if b" 200 " not in await probed(made.picker.metrics_port):
                made.told.append(f"a probe was not answered after a plugin had done {deed}")
            log = (made.picker.folder / "log").read_text()
            if "draining" in log or "reload" in log:
                made.told.append(f"it drained or reloaded because a plugin had done {deed}")
            made.signal(signal.SIGTERM)
            await made.ended(_LONGEST_SECONDS)
            for left in (port, made.picker.health_port, made.picker.metrics_port):
                with socket.socket() as again:
                    again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    try:
                        again.bind(("127.0.0.1", left))
                        again.listen()
                    except OSError:
                        made.told.append(f"a port is taken though the picker has ended, after a plugin had done {deed}")
        found += made.told
    return found


_STALLS = (
    *("in-a-pipe", "without-an-answer", "in-a-name-of-lines"),
    *("with-a-loader-that-raises", "with-a-loader-that-waits", "with-a-loader-of-nonsense"),
)


async def stalls_that_hide_what_holds_the_loop(target: Target) -> Iterable[str]:
    """A plugin of a second picker holds the loop in code whose file is a pipe, whose loader waits, whose `self` has no answers."""
    found = []
    for deed in _STALLS:
        async with second(target, "--drain-timeout=0s", "--circuit-cool-down=100ms", config=_CONFIG, files=_SITE) as made:
            os.mkfifo(made.picker.folder / "pipe")
            await _have_done(made.picker.ext_proc_port, f"block-{deed}")
            await asyncio.sleep(0.5)
            await _have_done(made.picker.ext_proc_port, "block-without-an-answer")
            log = (made.picker.folder / "log").read_text(errors="replace")
            if log.count("has stood still for") < 2:
                made.told.append(f"the watchdog told {log.count('has stood still for')} of two stalls, the first of which was {deed}")
            made.told += refused([await asked(made.picker.ext_proc_port)], f"after a stall {deed}")
            made.signal(signal.SIGTERM)
            await made.ended(10)
        found += made.told
    return found


async def threads_that_never_come_back(target: Target) -> Iterable[str]:
    """A plugin of a second picker fills the threads of the process for a minute: it reloads, follows files, is scraped and ends."""
    async with second(target, "--drain-timeout=0s", config=_CONFIG, files=_SITE) as made:
        await _have_done(made.picker.ext_proc_port, "fill-executor")
        await asyncio.sleep(0.3)
        if not await page_of(made.picker.metrics_port):
            made.told.append("a scrape that may be compressed was not answered in 5 s")
        made.signal(signal.SIGHUP)
        entries = endpoints_file(ENDPOINTS, target.model_server_port) + hostile_entries(target.model_server_port, 5)
        (made.picker.folder / "endpoints.yaml").write_text(entries)
        await asyncio.sleep(3.5)
        log = (made.picker.folder / "log").read_text()
        if "configuration replaced" not in log:
            made.told.append("a reload was not made")
        if "default/h0" not in log:
            made.told.append("endpoints that joined were not seen")
        made.signal(signal.SIGTERM)
        await made.ended(_LONGEST_SECONDS)
    return made.told


async def reloads_that_do_not_come_back(target: Target) -> Iterable[str]:
    """The validator of a plugin never returns in a reload of a second picker, once or five times, beside requests and then the end."""
    found: list[str] = []
    config = CONFIG.replace("plugins:\n", "plugins:\n- {type: acme.patient, parameters: {seconds: 0}}\n", 1).replace(
        "- pluginRef: siege.beat", "- pluginRef: siege.beat\n  - pluginRef: acme.patient"
    )
    for times in (1, 5):
        async with second(target, "--drain-timeout=0s", config=config, files=_SITE) as made:
            (made.picker.folder / "config.yaml").write_text(config.replace("seconds: 0", "seconds: 1.0e6"))
            for _ in range(times):
                made.signal(signal.SIGHUP)
                made.told += refused([await asked(made.picker.ext_proc_port) for _ in range(5)], "while a reload did not come back")
                await asyncio.sleep(0.3)
            if not await page_of(made.picker.metrics_port) or b" 200 " not in await probed(made.picker.metrics_port):
                made.told.append("a probe or a scrape was not answered while a reload did not come back")
            made.signal(signal.SIGTERM)
            await made.ended(12)
        found += made.told
    return found


async def generators_that_do_not_end(target: Target) -> Iterable[str]:
    """A plugin of a second picker leaves generators open, weak references and finalizers that raise, until it is told to end."""
    async with second(target, "--drain-timeout=0s", config=_CONFIG, files=_SITE) as made:
        made.picker.blames = "aside"
        for _ in range(5):
            await _have_done(made.picker.ext_proc_port, "leave-generators")
        made.told += refused([await asked(made.picker.ext_proc_port) for _ in range(5)], "after generators were left")
        made.signal(signal.SIGTERM)
        await made.ended(_LONGEST_SECONDS)
    return made.told


async def reports_from_other_threads(target: Target) -> Iterable[str]:
    """The discovery of a second picker reports all there is from threads, and then as it should: all endpoints are asked and serve."""
    asked_for: set[str] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked_for.add(writer.get_extra_info("sockname")[0])
        await answering(page(b"vllm:num_requests_waiting 1\n"))(reader, writer)

    found = "- {name: endpoints, type: file-discovery, parameters: {path: endpoints.yaml, watchFile: true}}"
    two = "- {name: a, type: acme.aside}\n- {name: b, type: acme.aside}"
    config = CONFIG.replace(found, f"- {{name: endpoints, type: acme.restless}}\n{two}").replace(
        "- pluginRef: siege.beat", "- pluginRef: siege.beat\n  - pluginRef: a\n  - pluginRef: b"
    )
    async with serving(serve) as port:
        pool = [f"e{number} 127.0.97.{number + 1} {port}\n" for number in range(6)]
        async with second(target, "--drain-timeout=0s", config=config, files={**_SITE, "pool": pool[0]}) as made:
            made.picker.blames = "acme.restless"
            answers = []
            for number in range(2, 7):
                (made.picker.folder / "pool").write_text("".join(pool[:number]))
                answers += [await asked(made.picker.ext_proc_port) for _ in range(5)]
                await asyncio.sleep(0.5)
            made.told += refused(answers, "while a discovery reported from threads")
            told = (made.picker.folder / "removed").read_text().split() if (made.picker.folder / "removed").exists() else []
            if told.count("a") != told.count("b"):
                made.told.append(f"of endpoints that left one plugin heard {told.count('a')} times and another {told.count('b')} times")
            if len(asked_for) < len(pool):
                made.told.append(f"of {len(pool)} endpoints {len(asked_for)} were asked for their metrics")
            made.signal(signal.SIGTERM)
            await made.ended(_LONGEST_SECONDS)
    return made.told


async def hooks_that_change_what_they_are_shown(target: Target) -> Iterable[str]:
    """Two hook objects of a second picker clear each decision and each configuration that they are shown, at once and later in threads."""
    config = CONFIG.replace("plugins:\n", "hooks: [{name: acme.shown}, {name: acme.again}]\nplugins:\n", 1)
    async with second(target, "--drain-timeout=0s", "--decision-sampling=1", config=config, files=_SITE) as made:
        answers = []
        for number in range(4):
            answers += [await asked(made.picker.ext_proc_port) for _ in range(10)]
            (made.picker.folder / "config.yaml").write_text(config.replace("weight: 2", f"weight: {number}.5"))
            made.signal(signal.SIGHUP)
            await asyncio.sleep(0.5)
        made.told += refused(answers, "while hook objects changed what they were shown")
        log = (made.picker.folder / "log").read_text()
        if log.count("configuration replaced") < 2:
            made.told.append(f"of four reloads {log.count('configuration replaced')} were made")
        judged = (made.picker.folder / "judged").read_text().split()
        if "spoilt" in judged or len(judged) < 80:
            made.told.append(f"of {len(judged)} things that hook objects were shown another had spoilt {judged.count('spoilt')}")
        made.signal(signal.SIGTERM)
        await made.ended(_LONGEST_SECONDS)
    return made.told


async def ends_that_are_held_up(target: Target) -> Iterable[str]:
    """A plugin of a second picker leaves threads, processes, tasks, executors and functions for the end, none of which comes back."""
    async with second(target, "--drain-timeout=0s", config=_CONFIG, files=_SITE) as made:
        made.picker.blames = "aside"
        await _have_done(made.picker.ext_proc_port, "hang-at-exit")
        made.told += refused([await asked(made.picker.ext_proc_port) for _ in range(5)], "after much was left for the end")
        made.signal(signal.SIGTERM)
        await made.ended(12)
    return made.told


async def threads_with_what_calls_were_given(target: Target) -> Iterable[str]:
    """Threads of a plugin of a second picker fork, and read and write all that calls were given, long after them: 20 requests at once."""
    async with second(target, "--drain-timeout=0s", config=_CONFIG, files=_SITE) as made:
        made.picker.blames = "aside"
        answers = []
        for deed in ("work-in-threads", "work-in-threads", "fork-in-threads"):
            await _have_done(made.picker.ext_proc_port, deed)
            for _ in range(4):
                answers += await asyncio.gather(*(asked(made.picker.ext_proc_port) for _ in range(5)))
                if b" 200 " not in await probed(made.picker.metrics_port) or not await page_of(made.picker.metrics_port):
                    made.told.append(f"a probe or a scrape was not answered beside {deed}")
        made.told += refused(answers, "beside threads with what calls were given")
        made.signal(signal.SIGTERM)
        await made.ended(_LONGEST_SECONDS)
    return made.told


async def metrics_without_measure(target: Target) -> Iterable[str]:
    """A plugin of a second picker counts by twenty thousand labels, and shows as many samples that are written behind their family."""
    async with second(target, "--drain-timeout=0s", config=_CONFIG, files=_SITE) as made:
        made.picker.blames = "aside"
        await _have_done(made.picker.ext_proc_port, "count-without-measure")
        answers, pages = [], []
        while len(pages) < _FEWEST_PAGES or time.monotonic() < target.until:
            scraping = asyncio.create_task(page_of(made.picker.metrics_port))
            while not scraping.done():
                answers.append(await asked(made.picker.ext_proc_port))
            pages.append(len(await scraping))
        if max(pages) < 40_000 * 50:
            made.told.append(f"the longest page had {max(pages)} bytes")
        made.told += refused(answers, "beside metrics without measure")
    return made.told


ATTEMPTS = (
    Attempt(metrics_without_measure),
    Attempt(ends_that_are_held_up),
    Attempt(threads_with_what_calls_were_given),
    Attempt(reloads_that_do_not_come_back),
    Attempt(reports_from_other_threads),
    Attempt(hooks_that_change_what_they_are_shown),
    Attempt(children_that_are_forked),
    Attempt(stalls_that_hide_what_holds_the_loop),
    Attempt(threads_that_never_come_back),
    Attempt(generators_that_do_not_end),
)
