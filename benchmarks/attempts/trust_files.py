"""Records, metadata and lock files that are forged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.locked_site import Site, Way, install, judged, row, served, site_of, tried


def changed_module(site: Site, name: str = "scorer") -> Path:
    return site.write(site.packages / "parts" / f"{name}.py")


def _recorded(site: Site, change: Callable[[str], str]) -> None:
    record = site.information / "RECORD"
    record.write_bytes(change(record.read_text()).encode())


def _without(record: str, name: str) -> str:
    return "".join(line for line in record.splitlines(keepends=True) if not line.startswith(name))


def a_changed_file(site: Site) -> None:
    changed_module(site)


def a_changed_file_and_its_record(site: Site) -> None:
    file = changed_module(site)
    _recorded(site, lambda old: _without(old, "parts/scorer.py") + row(site.packages, file))


def a_changed_file_and_no_record(site: Site) -> None:
    changed_module(site)
    (site.information / "RECORD").unlink()


def a_changed_file_that_its_record_lists_twice(site: Site) -> None:
    file = changed_module(site)
    _recorded(site, lambda old: old + row(site.packages, file))


def a_changed_file_that_its_record_lists_by_other_ways(site: Site) -> None:
    file = changed_module(site)
    other = row(site.packages, file)
    _recorded(
        site, lambda old: _without(old, "parts/scorer.py") + other.replace("parts/", "parts/../parts//./") + f"{file},,\n" + f"../{other}"
    )


def a_changed_file_whose_row_is_within_another(site: Site) -> None:
    changed_module(site)
    _recorded(site, lambda old: old.replace("parts/scorer.py,", '"parts/x\nparts/scorer.py",'))


def a_changed_file_whose_row_has_odd_ends_of_lines(site: Site) -> None:
    changed_module(site)
    _recorded(site, lambda old: old.replace("parts/scorer.py,", "parts/x\u2028parts/scorer.py,").replace("\n", "\x0b", 1))


def a_changed_file_whose_row_has_a_weak_digest(site: Site) -> None:
    changed_module(site)
    _recorded(site, lambda old: old.replace("parts/scorer.py,sha256=", "parts/scorer.py,md5=0,sha256="))


def a_changed_file_of_which_the_record_knows_a_nul(site: Site) -> None:
    changed_module(site)
    _recorded(site, lambda old: old.replace("parts/scorer.py,", "parts/scorer.py\0,"))


def a_record_that_is_a_pipe(site: Site) -> None:
    changed_module(site)
    (site.information / "RECORD").unlink()
    os.mkfifo(site.information / "RECORD")


def a_changed_file_of_what_says_it_is_editable(site: Site) -> None:
    changed_module(site)
    told = {"url": site.packages.as_uri(), "dir_info": {"editable": True}}
    (site.information / "direct_url.json").write_text(json.dumps(told))


def no_metadata_and_a_type_offered_by_another(site: Site) -> None:
    shutil.rmtree(site.information)
    changed_module(site)
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
    "nothing": lambda _: b"",
    "half": lambda lock: lock[: len(lock) // 2].encode(),
    "null": lambda _: b"null",
    "a list": lambda _: b"[]",
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
    "brackets": lambda _: b"[" * 300_000,
    "18 MB": lambda lock: lock.encode() + b" " * 18_000_000,
    "half a pair": lambda lock: lock.replace("acme.even", "\\ud800").encode(),
}


async def lock_files_that_are_none(target: Target) -> list[str]:
    """A changed plugin beside lock files of 24 wrong kinds: empty, doubled, in capitals, look-alikes, pipes, devices."""
    found, site = [], site_of(target)
    changed_module(site)
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
    """Editable by its own word, other entry points, newer and disguised releases, others that offer the type, or endpick's name, hooks."""
    return await tried(target, METADATA)


ATTEMPTS = tuple(
    Attempt(run)
    for run in (
        records_that_are_forged,
        metadata_that_lies,
        lock_files_that_are_none,
    )
)
