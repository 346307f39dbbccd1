"""Compares the serving configuration and plugins with the file and installed versions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from endpick.api import hookimpl
from endpick.config import LoadedConfig
from endpick.config.load import load_bytes
from endpick.engine.picker import Picker
from endpick.host import discovery
from endpick.serve.metrics import EndpickMetrics

_log = logging.getLogger("endpick.serve")

CHECK_SECONDS = 30.0
SETTLE_SECONDS = 5.0  # a reload or an installation may be under way


def installed_version(distribution: str) -> str:
    """Return the installed version of a distribution; empty if it is not installed."""
    try:
        return discovery.installed_version(distribution) or ""
    except Exception:  # while an installer replaces it, its folder may be empty
        return ""


@dataclass(frozen=True, slots=True)
class Drift:
    """Differences between the serving process and a restart; versions are by distribution."""

    config_file: Path | None = None  # set if its content does not serve
    loaded: Mapping[str, str] = field(default_factory=dict)
    installed: Mapping[str, str] = field(default_factory=dict)  # empty versions if not installed

    @property
    def distributions(self) -> tuple[str, ...]:
        """The distributions whose loaded version is not the installed one."""
        return tuple(name for name, version in self.loaded.items() if self.installed[name] != version)

    def remarks(self) -> tuple[str, ...]:
        """Return a sentence for each difference, for `/healthz` and the log."""
        path = self.config_file
        about_file = f"{path} is not the configuration that serves; run `endpick validate {path}`, then reload with SIGHUP"
        return (*([about_file] if path else []), *map(self._remark, self.distributions))

    def _remark(self, name: str) -> str:
        if not self.installed[name]:
            return f"{name} {self.loaded[name]} serves and is not installed any more; a restart would fail"
        return f"{name} {self.installed[name]} is installed, but {self.loaded[name]} serves; restart to run it"


class DriftWatch:
    """Compares every 30 seconds and after each reload; logs each new difference once."""

    def __init__(self, picker: Picker, config_file: Path | None, metrics: EndpickMetrics) -> None:
        self.drift = Drift()
        self._picker = picker
        self._config_file = config_file
        self._metrics = metrics
        self._checking = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None

    @hookimpl
    async def endpick_started(self) -> None:
        """Compare once, and start the task that compares every 30 seconds."""
        await self.check()
        self._watching = asyncio.create_task(self._watch())

    @hookimpl
    async def endpick_stopping(self) -> None:
        """Cancel the task, and wait until it has ended."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if (await self._compared()).remarks() != self.drift.remarks():
                await asyncio.sleep(SETTLE_SECONDS)
            await self.check()

    @hookimpl(specname="endpick_reloaded")
    async def check(self) -> None:
        """Compare now; sets the drift metrics, and logs differences that are new."""
        async with self._checking:
            before, self.drift = self.drift, await self._compared()
        self._metrics.config_drift.set(self.drift.config_file is not None)
        self._metrics.plugin_drift.clear()
        for name in self.drift.loaded:
            self._metrics.plugin_drift.labels(name).set(name in self.drift.distributions)
        for remark in self.drift.remarks():
            if remark not in before.remarks():
                _log.warning(remark)

    async def _compared(self) -> Drift:
        deployment = self._picker.deployment
        loaded = {instance.distribution: instance.version for instance in deployment.instances.values()}
        return await asyncio.to_thread(_compare, deployment.plan.config, self._config_file, loaded)


def _compare(serving: LoadedConfig, config_file: Path | None, loaded: Mapping[str, str]) -> Drift:
    differs = config_file is not None and _differs(serving, config_file)
    return Drift(config_file if differs else None, loaded, {name: installed_version(name) for name in loaded})


def _differs(serving: LoadedConfig, config_file: Path) -> bool:
    try:
        raw = config_file.read_bytes()
    except OSError:
        return True
    if raw.decode(errors="replace") == serving.source.text:
        return False
    return load_bytes(raw, serving.path).source.data != serving.source.data
