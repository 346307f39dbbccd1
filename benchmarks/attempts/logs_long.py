"""Logs that are long in themselves, where nothing takes them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable

from benchmarks.attempts.catalogue import CONFIG, Attempt, Target
from benchmarks.attempts.second import asked, refused, second
from benchmarks.extproc.load import resident_mebibytes
from benchmarks.siege.beat import install_plugin

_LIMIT_MIB = 200
_LONG = '''\
import numpy as np

from endpick.api import Scorer


class Chatty(Scorer):
    """Logs much of each request, as for a hunt for a mistake, and with it what led to an exception."""

    async def start(self):
        self.said = 0

    def score(self, request, endpoints, state):
        for _ in range(10):
            self.said += 1
            try:
                raise ValueError("y" * 15_000)
            except ValueError:
                more = {"z": "z" * 15_000, "more": ["m" * 200_000]}
                self.context.logger.debug("%d %s", self.said, "x" * 15_000, exc_info=True, extra=more)
        return np.ones(len(endpoints))
'''
_UNREAD = "mkfifo out; { sed -u '/\"serving\"/q'; sleep 25; } <out &"


async def long_lines_that_nothing_reads(target: Target) -> Iterable[str]:
    """A second picker in 200 MiB whose plugin logs long lines, with exceptions and lists in them, to a pipe that nothing reads."""
    site = target.folder / "chatty"
    if not site.exists():
        install_plugin(site, "acme.chatty", "Chatty", _LONG)
    files = {f"site/{path.relative_to(site)}": path.read_text() for path in site.rglob("*") if path.is_file()}
    config = CONFIG.replace("plugins:\n", "plugins:\n- type: acme.chatty\n", 1).replace(
        "- pluginRef: siege.beat", "- pluginRef: siege.beat\n  - pluginRef: acme.chatty"
    )
    flags = (f"--max-memory={_LIMIT_MIB}Mi", "--log-level=debug")
    async with second(target, *flags, config=config, files=files, before=_UNREAD) as made:
        made.logs_whole_lines = False
        most, answers = 0.0, []
        for _ in range(40):
            answers += await asyncio.gather(*(asked(made.picker.ext_proc_port) for _ in range(5)))
            most = max(most, resident_mebibytes(made.picker.process.pid))
        made.told += refused(answers, "while long lines were not read")
        if most > _LIMIT_MIB * 1.2:
            made.told.append(f"{most:.0f} MiB were resident of {_LIMIT_MIB} while long lines were not read")
        made.signal(signal.SIGTERM)
        await made.ended(30)
    return made.told


ATTEMPTS = (Attempt(long_lines_that_nothing_reads),)
