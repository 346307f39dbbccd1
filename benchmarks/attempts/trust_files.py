"""Files that change: records, metadata, lock files, and everything that a process imports after it was checked."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.gateway import HELLO, answered, connected, request, send_flow_controlled
from benchmarks.attempts.locked_site import Act, Site, Way, asked, install, judged, row, served, site_of, tried


def _changed(site: Site, name: str = "scorer") -> Path:
    return site.write(site.packages / "parts" / f"{name}.py")


def _recorded(site: Site, change: Callable[[str], str]) -> None:
    record = site.information / "RECORD"
    record.write_bytes(change(record.read_text()).encode())


def _without(record: str, name: str) -> str:
    return "".join(line for line in record.splitlines(keepends=True) if not line.startswith(name))


def a_changed_file(site: Site) -> None:
    _changed(site)


def a_changed_file_and_its_record(site: Site) -> None:
    file = _changed(site)
    _recorded(site, lambda old: _without(old, "parts/scorer.py") + row(site.packages, file))


def a_changed_file_and_no_record(site: Site) -> None:
    _changed(site)
    (site.information / "RECORD").unlink()


def a_changed_file_that_its_record_lists_twice(site: Site) -> None:
    file = _changed(site)
    _recorded(site, lambda old: old + row(site.packages, file))


def a_changed_file_that_its_record_lists_by_other_ways(site: Site) -> None:
    file = _changed(site)
    other = row(site.packages, file)
    _recorded(
        site, lambda old: _without(old, "parts/scorer.py") + other.replace("parts/", "parts/../parts//./") + f"{file},,\n" + f"../{other}"
    )


def a_changed_file_whose_row_is_within_another(site: Site) -> None:
    _changed(site)
    _recorded(site, lambda old: old.replace("parts/scorer.py,", '"parts/x\nparts/scorer.py",'))


def a_changed_file_whose_row_has_odd_ends_of_lines(site: Site) -> None:
    _changed(site)
    _recorded(site, lambda old: old.replace("parts/scorer.py,", "parts/x\u2028parts/scorer.py,").replace("\n", "\x0b", 1))


def a_changed_file_whose_row_has_a_weak_digest(site: Site) -> None:
    _changed(site)
    _recorded(site, lambda old: old.replace("parts/scorer.py,sha256=", "parts/scorer.py,md5=0,sha256="))


def a_changed_file_of_which_the_record_knows_a_nul(site: Site) -> None:
    _changed(site)
    _recorded(site, lambda old: old.replace("parts/scorer.py,", "parts/scorer.py\0,"))


def a_record_that_is_a_pipe(site: Site) -> None:
    _changed(site)
    (site.information / "RECORD").unlink()
    os.mkfifo(site.information / "RECORD")


def a_changed_file_of_what_says_it_is_editable(site: Site) -> None:
    _changed(site)
    told = {"url": site.packages.as_uri(), "dir_info": {"editable": True}}
    (site.information / "direct_url.json").write_text(json.dumps(told))


def no_metadata_and_a_type_offered_by_another(site: Site) -> None:
    shutil.rmtree(site.information)
    _changed(site)
    install(site.packages, "acme-other", {"acme.even": "parts:Even"}, {})


def an_entry_point_into_another_module(site: Site) -> None:
    site.write(site.packages / "evil.py")
    points = site.information / "entry_points.txt"
    points.write_text(points.read_text().replace("parts:Even", "evil:Even"))


def an_entry_point_into_another_module_and_its_record(site: Site) -> None:
    an_entry_point_into_another_module(site)
    points = site.information / "entry_points.txt"
    _recorded(site, lambda old: _without(old, "acme_parts-1.0.dist-info/entry_points") + row(site.packages, points))


def a_newer_release_on_pythonpath(site: Site) -> None:
    install(site.shadow, "acme-parts", {"acme.even": "parts:Even"}, {"parts/__init__.py": site.evil()}, "2.0")


def the_same_release_on_pythonpath_with_the_record_of_the_locked_one(site: Site) -> None:
    information = install(site.shadow, "acme-parts", {"acme.even": "parts:Even"}, {"parts/__init__.py": site.evil()})
    shutil.copy(site.information / "RECORD", information / "RECORD")


def a_release_in_disguise(site: Site) -> None:
    """The same name spelled otherwise, with metadata of an egg."""
    information = install(site.shadow, "Acme_PARTS", {"acme.even": "parts:Even"}, {"parts/__init__.py": site.evil()})
    information.rename(site.shadow / "ACME.parts.egg-info")
    (site.shadow / "ACME.parts.egg-info" / "METADATA").rename(site.shadow / "ACME.parts.egg-info" / "PKG-INFO")


def another_distribution_that_offers_the_type(site: Site) -> None:
    install(site.shadow, "acme-other", {"acme.even": "evil:Even"}, {"evil.py": site.evil()})
    shutil.rmtree(site.information)


def another_distribution_that_says_it_is_endpick(site: Site) -> None:
    install(site.shadow, "endpick", {"acme.even": "evil:Even"}, {"evil.py": site.evil()})
    shutil.rmtree(site.information)


def a_hook_object_that_no_lock_has(site: Site) -> None:
    information = install(site.packages, "acme-hooks", {}, {"hooking.py": site.evil("class Hook:\n    pass")})
    (information / "entry_points.txt").write_text("[endpick.hooks.v1]\nacme-hook = hooking:Hook\n")
    config = site.folder / "config.yaml"
    config.write_text(config.read_text() + "hooks: [{name: acme-hook}]\n")


LOCKS: Mapping[str, Callable[[str], bytes]] = {
    "nothing": lambda lock: b"",
    "half": lambda lock: lock[: len(lock) // 2].encode(),
    "null": lambda lock: b"null",
    "a list": lambda lock: b"[]",
    "the first format": lambda lock: lock.replace('"format": 2', '"format": 1').encode(),
    "no number": lambda lock: lock.replace('"format": 2', '"format": NaN').encode(),
    "no plugins": lambda lock: json.dumps({**json.loads(lock), "plugins": []}).encode(),
    "plugins twice": lambda lock: (lock.rstrip().rstrip("}") + ', "plugins": []}').encode(),
    "capitals": lambda lock: lock.replace('"plugins"', '"Plugins"').encode(),
    "letters that look alike": lambda lock: lock.replace("acme-parts", "\u0430cme-parts").encode(),
    "a digest in capitals": lambda lock: lock.replace("sha256:", "SHA256:").encode(),
    "no digests": lambda lock: "\n".join(line for line in lock.splitlines() if '"digest"' not in line).encode(),
    "empty digests": lambda lock: json.dumps(
        {
            name: [{**one, "digest": ""} for one in part] if name in ("plugins", "owners") else part
            for name, part in json.loads(lock).items()
        }
    ).encode(),
    "a pattern for a name": lambda lock: lock.replace('"acme-parts"', '"*"').replace("acme.even", "*").encode(),
    "wide characters": lambda lock: lock.encode("utf-16"),
    "more behind it": lambda lock: (lock + "{}").encode(),
    "brackets": lambda lock: b"[" * 300_000,
    "18 MB": lambda lock: lock.encode() + b" " * 18_000_000,
    "half a pair": lambda lock: lock.replace("acme.even", "\\ud800").encode(),
}


async def lock_files_that_are_none(target: Target) -> list[str]:
    """A changed plugin beside lock files of 24 wrong kinds: empty, doubled, in capitals, look-alikes, pipes, devices."""
    found, site = [], site_of(target)
    _changed(site)
    path = site.folder / "endpick.lock.json"
    genuine = path.read_text()

    def others() -> Iterator[str]:
        for name, written in LOCKS.items():
            path.write_bytes(written(genuine))
            yield name
        for name, made in {
            "none": lambda: None,
            "a pipe": lambda: os.mkfifo(path),
            "a folder": path.mkdir,
            "a device": lambda: path.symlink_to("/dev/zero"),
            "a link to itself": lambda: path.symlink_to(path),
        }.items():
            path.unlink()
            made()
            yield name
            if name == "a folder":
                path.rmdir()
                path.touch()
            elif name == "none":
                path.touch()

    for name in others():
        code, log = await served(site)
        found += judged(site, f"a lock file of {name}", code, log)
        if code != 4:
            found.append(f"a lock file of {name}: the start was not refused, but ended with {code}")
    return found


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
    ("a changed module, imported late", "import", lambda site: _changed(site, "late")),
    ("a changed module, imported by its relative name", "relative", lambda site: _changed(site, "late")),
    ("a changed module, asked for as an attribute", "attribute", lambda site: _changed(site, "late")),
    ("a changed module, loaded once more", "reload", _changed),
    ("a changed module, run as a program", "program", lambda site: _changed(site, "late")),
    ("a changed module, loaded when it is used", "lazy", lambda site: _changed(site, "late")),
    ("a module that nobody listed", "unlisted", lambda site: _changed(site, "extra")),
    ("a module in a folder that was added to the package", "elsewhere", lambda site: site.write(site.folder / "elsewhere" / "extra.py")),
    ("a changed module, imported by eight threads at once", "at once", lambda site: _changed(site, "late")),
    ("a module that was loaded, forgotten and changed", "again", lambda site: _changed(site, "late")),
    ("a link in the place of a module", "import", _links_elsewhere),
    ("a package in the place of a module", "import", _becomes_a_package),
    ("a link in the place of the package", "import", _package_moves),
    ("a module that is written by another name", "import", _hard_link),
    ("a pipe in the place of a module", "import", _pipe),
)


async def modules_that_change_while_it_serves(target: Target) -> list[str]:
    """Fifteen ways to change, link, replace or add a module of a serving plugin, and as many to have it imported: late, lazily, again, as a program."""
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
            while not any(word in (site.root / "log").read_text() for word in ("reloaded", "reload was refused", "E0308", "refused")):
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
        locked = subprocess.run(site.endpick("lock"), cwd=site.folder, env=site.surroundings(), capture_output=True, check=False)
        assert locked.returncode == 0, locked.stderr

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


RECORDS: tuple[Way, ...] = (
    a_changed_file,
    a_changed_file_and_its_record,
    a_changed_file_and_no_record,
    a_changed_file_that_its_record_lists_twice,
    a_changed_file_that_its_record_lists_by_other_ways,
    a_changed_file_whose_row_is_within_another,
    a_changed_file_whose_row_has_odd_ends_of_lines,
    a_changed_file_whose_row_has_a_weak_digest,
    a_changed_file_of_which_the_record_knows_a_nul,
    a_record_that_is_a_pipe,
)
METADATA: tuple[Way, ...] = (
    a_changed_file_of_what_says_it_is_editable,
    no_metadata_and_a_type_offered_by_another,
    an_entry_point_into_another_module,
    an_entry_point_into_another_module_and_its_record,
    a_newer_release_on_pythonpath,
    the_same_release_on_pythonpath_with_the_record_of_the_locked_one,
    a_release_in_disguise,
    another_distribution_that_offers_the_type,
    another_distribution_that_says_it_is_endpick,
    a_hook_object_that_no_lock_has,
)


async def records_that_are_forged(target: Target) -> list[str]:
    """A changed module with RECORD gone, forged, doubled, with odd paths, rows, line ends and digests, or a pipe in its place."""
    return await tried(target, RECORDS)


async def metadata_that_lies(target: Target) -> list[str]:
    """Editable by its own word, other entry points, newer and disguised releases, others that offer the type or say they are endpick, hooks."""
    return await tried(target, METADATA)


ATTEMPTS = tuple(
    Attempt(run)
    for run in (
        records_that_are_forged,
        metadata_that_lies,
        lock_files_that_are_none,
        modules_that_change_while_it_serves,
        files_that_flip_while_it_starts,
        another_release_below_a_running_one,
        a_parser_that_changes_before_the_helper_loads_it,
    )
)
