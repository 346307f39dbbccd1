"""Looks up what an installed distribution brings: by its RECORD, or by its sources where it is editable."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from endpick.files import open_regular
from endpick.host.discovery import Candidate
from endpick.host.locating import MODULE_SUFFIXES, locate, module_files, places
from endpick.host.metadata import read_all, top_level_modules
from endpick.host.record import Contents, digest_of, read_record

_MOST_FILES = 5


def contents_of(candidate: Candidate, *modules: str) -> Contents:
    """What the distribution of a candidate brings.

    Of a wheel what its RECORD says. Of an editable install, and of one without a RECORD that tells digests, the packages to which its
    entry points lead, and those of `modules`; what would be imported from another place is left out.
    """
    record = read_record(candidate.metadata_path)
    offered = top_level_modules(candidate.metadata_path)
    if candidate.editable or record.digests is None:
        return _from_sources(candidate, {*offered, *(name.partition(".")[0] for name in modules)})
    root = Path(candidate.metadata_path).parent
    digests = {f"{root}/{path}": digest for path, digest in record.digests.items()}
    named = _modules((path, f"{root}/{path}") for path in record.paths)
    plugins_in = frozenset(offered if candidate.is_builtin else ())
    return Contents(candidate.distribution, candidate.version, str(root), _fingerprint(record.lines), digests, named, plugins_in=plugins_in)


def _from_sources(candidate: Candidate, top_level: Iterable[str]) -> Contents:
    root = Path(candidate.source_path) if candidate.editable else Path(candidate.metadata_path).parent
    digests: dict[str, str] = {}
    relative: dict[str, str] = {}
    for top in top_level:
        for place in places(top):
            if not Path(os.path.realpath(place)).is_relative_to(os.path.realpath(root)):
                continue
            base = place.parent.parent if place.name.startswith("__init__.") else place.parent
            for file in module_files(place):
                digest = _digest_now(file)
                if digest is not None:
                    digests[str(file)] = digest
                    relative[str(file)] = file.relative_to(base).as_posix()
    lines = sorted(f"{relative[file]},{digest}" for file, digest in digests.items())
    modules = _modules((path, file) for file, path in relative.items())
    return Contents(candidate.distribution, candidate.version, str(root), _fingerprint(lines), digests, modules, recorded=False)


def _digest_now(file: Path) -> str | None:
    """None for what cannot be imported either: a link to nothing, as editors leave them, a directory, a pipe, a file of another user."""
    try:
        with open_regular(file) as content:
            return digest_of(content.read())
    except OSError:
        return None


def _fingerprint(lines: Iterable[str]) -> str:
    """Of lines that no other lines can pass for: a path, or a digest, with a line end in it is not two lines."""
    told = "".join(line.replace("\n", "\\n") + "\n" for line in lines)
    return f"sha256:{hashlib.sha256(told.encode()).hexdigest()}"


def _modules(files: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Module names of files, given by relative and absolute path; where two files hold one module, the one that Python prefers."""
    found: dict[str, str] = {}
    for path, file in sorted(files, key=lambda each: (not _is_package(each[0]), each[0].endswith(".py"), each[0])):
        name = _module_name(path)
        if name is not None:
            found.setdefault(name, file)
    return found


def _is_package(path: str) -> bool:
    return PurePosixPath(path).name.startswith("__init__.")


def _module_name(path: str) -> str | None:
    suffix = next((suffix for suffix in sorted(MODULE_SUFFIXES, key=len, reverse=True) if path.endswith(suffix)), None)
    if suffix is None:
        return None
    parts = PurePosixPath(path.removesuffix(suffix)).parts
    named = parts[:-1] if parts[-1] == "__init__" else parts
    # Not only identifiers: what compiles packages puts their code into modules such as `30fcd23745__mypyc`.
    return ".".join(named) if named and not any("." in part for part in named) else None


def listed(files: Sequence[str]) -> str:
    """Files as a message names them: a few, and how many more."""
    return ", ".join(files[:_MOST_FILES]) + (f" and {len(files) - _MOST_FILES} more" if len(files) > _MOST_FILES else "")


def owner_of(module: str) -> Contents | None:
    """The distribution that brings the module that Python would import under this name; None when no installed one does."""
    place = locate(module)
    if place is None:
        return None
    for copy in read_all():
        if copy.is_empty:
            continue
        owner = Candidate(
            "", 0, copy.name, copy.version, module, copy.path, bool(copy.source_path), copy.source_path, is_builtin=copy.is_host
        )
        if not owner.editable and not place.is_relative_to(copy.root):
            continue
        contents = contents_of(owner, module)
        if contents.brings(place):
            return contents
    return None
