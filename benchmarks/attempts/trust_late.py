"""What changes while a process with locked plugins starts and serves, and what it imports then."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.gateway import answered, connected, request, send_flow_controlled
from benchmarks.attempts.locked_site import Act, Site, asked, install, judged, lock, row, served, site_of
from benchmarks.attempts.trust_files import (
    a_changed_file_and_its_record,
    a_changed_file_and_no_record,
    a_newer_release_on_pythonpath,
    an_entry_point_into_another_module,
    changed_module,
)


def _late(act: str, plant: Callable[[Site], object]) -> Callable[[Site], Act]:
    """After the start something is planted, and then the plugin does what imports it."""

    def way(site: Site) -> Act:
        async def do(serving: Mapping[str, object]) -> str:
            plant(site)
            return await asked(site, serving["ext_proc_port"], act)

        return do

    return way


def _links_elsewhere(site: Site) -> None:
    site.write(site.root / "other" / "late.py")
    (site.packages / "parts" / "late.py").unlink()
    (site.packages / "parts" / "late.py").symlink_to(site.root / "other" / "late.py")


def _becomes_a_package(site: Site) -> None:
    site.write(site.packages / "parts" / "late" / "__init__.py")


def _package_moves(site: Site) -> None:
    site.write(site.root / "other" / "late.py")
    (site.packages / "parts").rename(site.root / "kept")
    (site.packages / "parts").symlink_to(site.root / "other")


def _hard_link(site: Site) -> None:
    """Written to by another name of it."""
    os.link(site.packages / "parts" / "late.py", site.root / "another-name")
    with (site.root / "another-name").open("r+") as file:
        file.write(site.evil())


def _pipe(site: Site) -> None:
    path = site.packages / "parts" / "late.py"
    path.unlink()
    os.mkfifo(path)
    threading.Thread(target=lambda: path.write_text(site.evil()), daemon=True).start()


LATE: tuple[tuple[str, str, Callable[[Site], object]], ...] = (
    ("a changed module, imported late", "import", lambda site: changed_module(site, "late")),
    ("a changed module, imported by its relative name", "relative", lambda site: changed_module(site, "late")),
    ("a changed module, asked for as an attribute", "attribute", lambda site: changed_module(site, "late")),
    ("a changed module, loaded once more", "reload", changed_module),
    ("a changed module, run as a program", "program", lambda site: changed_module(site, "late")),
    ("a changed module, loaded when it is used", "lazy", lambda site: changed_module(site, "late")),
    ("a module that no list has", "unlisted", lambda site: changed_module(site, "extra")),
    ("a module in a folder that was added to the package", "elsewhere", lambda site: site.write(site.folder / "elsewhere" / "extra.py")),
    ("a changed module, imported by eight threads at once", "at once", lambda site: changed_module(site, "late")),
    ("a module that was loaded, forgotten and changed", "again", lambda site: changed_module(site, "late")),
    ("a link in the place of a module", "import", _links_elsewhere),
    ("a package in the place of a module", "import", _becomes_a_package),
    ("a link in the place of the package", "import", _package_moves),
    ("a module that is written by another name", "import", _hard_link),
    ("a pipe in the place of a module", "import", _pipe),
)


async def modules_that_change_while_it_serves(target: Target) -> list[str]:
    """Fifteen times a module of a serving plugin is changed, linked, replaced or added, and imported: late, lazily, again, as a program."""
    found = []
    for name, act, plant in target.rng.sample(LATE, len(LATE)):
        site = site_of(target)
        code, log = await served(site, _late(act, plant)(site))
        found += judged(site, name, code, log)
        if not (site.folder / "came").exists():
            found.append(f"{name}: the plugin was not asked")
        shutil.rmtree(site.root, ignore_errors=True)
    return found


@contextmanager
def _flipping(swap: Callable[[int], object]) -> Iterator[None]:
    """Do something over and over, as quickly as can be."""
    ended = threading.Event()

    def flip() -> None:
        count = 0
        while not ended.is_set():
            with suppress(OSError):
                swap(count)
            count += 1

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


async def files_that_flip_while_it_starts(target: Target) -> list[str]:
    """Modules, the package, RECORD and entry points that are the locked ones and others in turn, thousands of times, while it starts."""
    found = []
    site = site_of(target)
    good = shutil.copytree(site.packages, site.root / "good", symlinks=True)
    evil = shutil.copytree(site.packages, site.root / "evil", symlinks=True)
    site.write(evil / "parts" / "scorer.py")
    site.write(evil / "parts" / "late.py")
    (evil / "acme_parts-1.0.dist-info" / "RECORD").write_text("".join(row(evil, file) for file in sorted((evil / "parts").glob("*.py"))))
    (evil / "acme_parts-1.0.dist-info" / "entry_points.txt").write_text("[endpick.plugins.v1]\nacme.even = parts.late:Even\n")

    def swapped(name: str) -> Callable[[int], None]:
        def swap(count: int) -> None:
            shutil.copyfile((good, evil)[count % 2] / name, site.root / "next")
            (site.root / "next").rename(site.packages / name)

        return swap

    def gone_and_back(count: int) -> None:
        place = site.packages / "parts" / "scorer.py"
        if count % 2:
            place.unlink()
        else:
            shutil.copyfile((good, evil)[count // 2 % 2] / "parts" / "scorer.py", site.root / "next")
            (site.root / "next").rename(place)

    def whole(count: int) -> None:
        (site.root / "next").symlink_to((good, evil)[count % 2] / "parts")
        (site.root / "next").rename(site.packages / "parts")

    names = ("parts/scorer.py", "acme_parts-1.0.dist-info/RECORD", "acme_parts-1.0.dist-info/entry_points.txt")
    for name, swap in (*((name, swapped(name)) for name in names), ("gone and back", gone_and_back), ("the package", whole)):
        if name == "the package":
            (site.packages / "parts").rename(site.root / "kept")
        for _ in range(3):
            with _flipping(swap):
                code, log = await served(site)
            found += judged(site, f"{name} in turn", code, log)
        if name != "the package":
            shutil.copytree(good, site.packages, symlinks=True, dirs_exist_ok=True)
    return found


async def another_release_below_a_running_one(target: Target) -> list[str]:
    """Another release, no metadata, a shadow on an empty entry of the path, and SIGHUP: nothing of it is loaded."""
    found = []
    for change in (
        a_changed_file_and_its_record,
        a_changed_file_and_no_record,
        a_newer_release_on_pythonpath,
        an_entry_point_into_another_module,
    ):
        site = site_of(target)
        _ = site.shadow

        async def do(serving: Mapping[str, object], site: Site = site, change: Callable[[Site], object] = change) -> None:
            change(site)
            os.kill(int(str(serving["pid"])), signal.SIGHUP)
            while not any(word in (site.root / "log").read_text() for word in ("reloaded", "E0308", "refused")):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

        code, log = await served(site, do)
        found += judged(site, f"{change.__name__.replace('_', ' ')}, and a reload", code, log)
        shutil.rmtree(site.root, ignore_errors=True)
    return found


_PARSER = """
from endpick_builtin.parsers.openai import OpenAIParser


class Reading(OpenAIParser):
    \"\"\"Reads as the parser of endpick does.\"\"\"
"""


async def a_parser_that_changes_before_the_helper_loads_it(target: Target) -> list[str]:
    """The process that parses large bodies loads the parser later, in a process of its own: changed, shadowed, with forged byte code."""
    found = []
    plants: tuple[Callable[[Site], object], ...] = (
        lambda site: site.write(site.packages / "reading.py", site.evil(_PARSER)),
        lambda site: site.write(site.shadow / "reading.py", site.evil(_PARSER)),
        lambda site: site.write(site.folder / "signal.py"),
        lambda site: site.write(site.shadow / "endpick_builtin" / "__init__.py"),
    )
    for number, plant in enumerate(plants):
        site = site_of(target)
        _ = site.shadow
        install(site.packages, "acme-reading", {"acme.reading": "reading:Reading"}, {"reading.py": _PARSER})
        config = site.folder / "config.yaml"
        config.write_text(
            config.read_text().replace("- type: acme.even", "- type: acme.reading\n- type: acme.even", 1)
            + "requestHandler: {parsers: [{pluginRef: acme.reading}]}\n"
        )
        lock(site)

        async def do(serving: Mapping[str, object], site: Site = site, plant: Callable[[Site], object] = plant) -> None:
            plant(site)
            port = int(str(serving["ext_proc_port"]))
            async with connected(port) as (reader, writer):
                await send_flow_controlled(reader, writer, 1, request(b'{"model":"m","prompt":"' + b"p" * 3_000_000 + b'"}'))
                await answered(reader, 3)

        code, log = await served(site, do)
        found += judged(site, f"a parser that changes, way {number}", code, log)
        if "large bodies" not in log:
            found.append(f"a parser that changes, way {number}: no helper was started")
        shutil.rmtree(site.root, ignore_errors=True)
    return found


ATTEMPTS = tuple(
    Attempt(run)
    for run in (
        modules_that_change_while_it_serves,
        files_that_flip_while_it_starts,
        another_release_below_a_running_one,
        a_parser_that_changes_before_the_helper_loads_it,
    )
)
