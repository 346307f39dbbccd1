"""`file-discovery`: the endpoints listed in a file, followed as it changes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from endpick.api import (
    ConfigurationError,
    Endpoint,
    EndpointDiscovery,
    EndpointRegistry,
    Limit,
    Limits,
    Parameters,
    PluginContext,
)
from endpick_builtin.discovery.endpoint_file import (
    MANY_FIELDS,
    MAX_FILE_BYTES,
    MODEL_SERVERS,
    EndpointFile,
    EntryRules,
    read_endpoint_file,
)

LONG_FILE = Limit(
    "maxFileBytes",
    "endpoints stay as they are: their file is longer than maxFileBytes; raise maxFileBytes, or write fewer endpoints, or fewer labels",
)
LOOK_INTERVAL_SECONDS = 1.0
SETTLING_LOOKS = 3
"""A file that has just changed may change again without a new time stamp, so it is read so many times more. Looks are counted, because
the clock by which files are stamped may jump."""


class FileDiscoveryParameters(Parameters):
    """Which file."""

    path: Annotated[
        str,
        Field(
            min_length=1,
            description="YAML or JSON file of endpoints; relative to the working directory.",
            examples=["endpoints.yaml"],
        ),
    ]
    watch_file: Annotated[bool, Field(alias="watchFile", description="Follow changes of the file, within about a second.")] = False
    max_file_bytes: Annotated[
        int,
        Field(
            alias="maxFileBytes",
            ge=1024,
            description="Longest file that is read, in bytes, and most fields that it may have with all that aliases repeat; more go with "
            "a higher `--max-endpoints`.",
        ),
    ] = MAX_FILE_BYTES


@dataclass(frozen=True, slots=True)
class FileVersion:
    """One state of the file, told apart by what the file system says of it."""

    content: bytes
    signature: tuple[int, ...]
    looks_left: int = SETTLING_LOOKS
    """After which it is read no more until the file system says that it changed."""


class FileDiscovery(EndpointDiscovery[FileDiscoveryParameters]):
    """Takes the pool from a file in llm-d's format: `endpoints:`, a list of `{name, namespace, address, port, labels}`.

    `namespace` defaults to `default`; `address` is an IP address; `port` is text (`"8000"`), or a number. Of two entries with one name the
    last wins. At start every entry must be right. Later, with `watchFile`, wrong entries are logged and right ones applied; an endpoint
    whose entry has become wrong stays as it was, and so does everything while the file is missing or unreadable.

    The file is looked at once a second by path, so that writes in place, renames over it and swapped symbolic links (ConfigMaps) all show.
    """

    rules: ClassVar[EntryRules] = MODEL_SERVERS
    """What the entries of the file may say."""

    def __init__(self, name: str, parameters: FileDiscoveryParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._path = Path(parameters.path)
        self._pool: dict[str, Endpoint] = {}
        self._trouble = ""
        self._most_bytes = parameters.max_file_bytes
        self._limits = Limits(context, (LONG_FILE, MANY_FIELDS))

    async def run(self, registry: EndpointRegistry) -> None:
        """Report the file once and, with `watchFile`, whenever it changes.

        Raises:
            ConfigurationError: at start the file cannot be read, or an entry is wrong; the message lists all of them by line.
        """
        version = await self._load(registry)
        registry.ready()
        while self.parameters.watch_file:
            await asyncio.sleep(LOOK_INTERVAL_SECONDS)
            version = await self._follow(version, registry)

    async def _load(self, registry: EndpointRegistry) -> FileVersion:
        try:
            version = await asyncio.to_thread(read_version, self._path, self._most_bytes)
        except (OSError, ValueError) as problem:
            raise ConfigurationError(f"endpoint file {self._path} cannot be read: {_reason(problem)}") from problem
        contents = await asyncio.to_thread(read_endpoint_file, version.content, self.rules, self._most_bytes)
        if contents.mistakes:
            listed = "".join(f"\n  {mistake}" for mistake in contents.mistakes)
            count = len(contents.mistakes)
            raise ConfigurationError(f"endpoint file {self._path} has {count} mistake{'s' if count > 1 else ''}:{listed}")
        self._apply(contents, registry)
        return version

    async def _follow(self, seen: FileVersion, registry: EndpointRegistry) -> FileVersion:
        """Apply the file if it changed; returns the state it was in."""
        try:
            if not seen.looks_left and await asyncio.to_thread(signature_of, self._path) == seen.signature:
                return seen
            version = await asyncio.to_thread(read_version, self._path, self._most_bytes)
        except TooLongError:
            self._limits.acted(LONG_FILE, about=str(self._path))
            return seen
        except (OSError, ValueError) as problem:
            self._complain_once(_reason(problem))
            return seen
        self._trouble = ""
        if version.content != seen.content:
            self._apply(await asyncio.to_thread(read_endpoint_file, version.content, self.rules, self._most_bytes), registry)
        elif version.signature == seen.signature:
            return replace(version, looks_left=max(0, seen.looks_left - 1))
        return version

    def _complain_once(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self.context.logger.warning("endpoint file %s cannot be read, endpoints stay as they are: %s", self._path, trouble)

    def _apply(self, contents: EndpointFile, registry: EndpointRegistry) -> None:
        if contents.exceeds is not None:
            self._limits.acted(contents.exceeds, about=str(self._path))
        for mistake in _first_of(contents.mistakes):
            self.context.logger.error("endpoint file %s, %s", self._path, mistake)
        for remark in _first_of(contents.remarks):
            self.context.logger.warning("endpoint file %s, %s", self._path, remark)
        if contents.endpoints is None:
            return
        kept = {mistake.endpoint: self._pool[mistake.endpoint] for mistake in contents.mistakes if mistake.endpoint in self._pool}
        self._pool = kept | {endpoint.name: endpoint for endpoint in contents.endpoints}
        registry.replace_all(self._pool.values())


_TOLD_LINES = 20
"""Of one kind, of one state of the file."""


def _first_of(lines: Sequence[object]) -> list[str]:
    more = len(lines) - _TOLD_LINES
    return [str(line) for line in lines[:_TOLD_LINES]] + ([f"and {more} lines more"] if more > 0 else [])


class TooLongError(ValueError):
    """The file has more than `maxFileBytes`."""


def _reason(problem: OSError | ValueError) -> str:
    return getattr(problem, "strerror", None) or str(problem)


def read_version(path: Path, most_bytes: int = MAX_FILE_BYTES) -> FileVersion:
    """Read a file of at most `most_bytes`, and how to recognise this state of it. Blocks; call it in a thread.

    Raises:
        OSError: it cannot be read.
        TooLongError: it is too long.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise TooLongError(f"it is longer than {most_bytes} bytes; raise maxFileBytes")
    return FileVersion(content, _signature(status))


def signature_of(path: Path) -> tuple[int, ...]:
    """What tells one state of the file from another, through symbolic links. Raises OSError when there is no file."""
    return _signature(path.stat())


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
