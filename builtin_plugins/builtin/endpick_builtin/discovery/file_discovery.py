"""`file-discovery`: the endpoints listed in a file, which may change."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from endpick.api import ConfigurationError, Endpoint, Parameters, PluginContext
from endpick.api.discovery import EndpointDiscovery, EndpointRegistry
from endpick_builtin.discovery.endpoint_file import MODEL_SERVERS, EndpointFile, EntryRules, read_endpoint_file

LOOK_INTERVAL_SECONDS = 1.0
_LOGGED_LINES = 20


class FileDiscoveryParameters(Parameters):
    """The file."""

    path: Annotated[
        str,
        Field(
            min_length=1,
            description="YAML or JSON file of endpoints; relative to the working directory.",
            examples=["endpoints.yaml"],
        ),
    ]
    watch_file: Annotated[bool, Field(alias="watchFile", description="Follow changes of the file, within about a second.")] = False


class FileDiscovery(EndpointDiscovery[FileDiscoveryParameters]):
    """Takes the pool from a file in llm-d's format: `endpoints:`, a list of `{name, namespace, address, port, labels}`.

    `namespace` defaults to `default`; `address` is an IP address; `port` is text (`"8000"`) or a number. Of two entries with one name the
    last wins. At start every entry must be valid. Later, with `watchFile`, valid entries are applied and mistakes logged: an endpoint
    with a mistake in its entry keeps its last valid one, and the pool stays as it is while the file is missing or unreadable.

    The file is read once a second by path, so that writes in place, renames and swapped symbolic links (ConfigMaps) are all seen.
    """

    rules: ClassVar[EntryRules] = MODEL_SERVERS

    def __init__(self, name: str, parameters: FileDiscoveryParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._path = Path(parameters.path)
        self._pool: dict[str, Endpoint] = {}
        self._trouble = ""

    async def run(self, registry: EndpointRegistry) -> None:
        """Report the file once and, with `watchFile`, after each change.

        Raises:
            ConfigurationError: at start the file cannot be read or has mistakes, which the message lists by line.
        """
        try:
            content = await asyncio.to_thread(self._read)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"endpoint file {self._path} cannot be read: {_reason(error)}") from error
        file = await asyncio.to_thread(read_endpoint_file, content, self.rules)
        if file.mistakes:
            listed = "".join(f"\n  {mistake}" for mistake in file.mistakes)
            count = len(file.mistakes)
            raise ConfigurationError(f"endpoint file {self._path} has {count} mistake{'s' if count > 1 else ''}:{listed}")
        self._apply(file, registry)
        registry.ready()
        while self.parameters.watch_file:
            await asyncio.sleep(LOOK_INTERVAL_SECONDS)
            content = await self._follow(content, registry)

    async def _follow(self, seen: bytes, registry: EndpointRegistry) -> bytes:
        """Apply the file if it changed; returns its content."""
        try:
            content = await asyncio.to_thread(self._read)
        except (OSError, ValueError) as error:
            if (trouble := _reason(error)) != self._trouble:
                self._trouble = trouble
                self.context.logger.warning("endpoint file %s cannot be read, endpoints stay as they are: %s", self._path, trouble)
            return seen
        self._trouble = ""
        if content != seen:
            self._apply(await asyncio.to_thread(read_endpoint_file, content, self.rules), registry)
        return content

    def _read(self) -> bytes:
        return Path(self._path).read_bytes()

    def _apply(self, file: EndpointFile, registry: EndpointRegistry) -> None:
        for mistake in _first_of(file.mistakes):
            self.context.logger.error("endpoint file %s, %s", self._path, mistake)
        for remark in _first_of(file.remarks):
            self.context.logger.warning("endpoint file %s, %s", self._path, remark)
        if file.endpoints is None:
            return
        kept = {mistake.endpoint: self._pool[mistake.endpoint] for mistake in file.mistakes if mistake.endpoint in self._pool}
        self._pool = kept | {endpoint.name: endpoint for endpoint in file.endpoints}
        registry.replace_all(self._pool.values())


def _first_of(lines: Iterable[object]) -> list[str]:
    shown = [str(line) for line in lines]
    more = len(shown) - _LOGGED_LINES
    return [*shown[:_LOGGED_LINES], f"and {more} lines more"] if more > 0 else shown


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)
