"""Starts workers, hands them connections, and starts crashed ones again."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final

from endpick.serve.ports import bound_port, started_port
from endpick.serve.settings import ServeSettings
from endpick.serve.workers.pages import WorkerPages
from endpick.serve.workers.worker import VARIABLE, WorkerRole
from endpick.transport.handover import Port, control_pair, hand_over

_log = logging.getLogger("endpick.workers")

_RESTART_SECONDS: Final = 1.0
_MESSAGE_BYTES: Final = 64
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(slots=True, eq=False)
class Worker:
    """A running worker process, as its supervisor sees it."""

    number: int
    process: asyncio.subprocess.Process
    control: socket.socket
    connections: int = 0  # to ext_proc
    metrics_port: int | None = None  # once it serves
    is_replacement: bool = False


class Supervisor:
    """Owns the ports, and runs workers: processes with the same command line."""

    def __init__(self, settings: ServeSettings, count: int, command: Sequence[str]) -> None:
        """Make a supervisor of `count` workers, each started with `command`."""
        self._settings = settings
        self._count = count
        self._command = command
        self._workers: dict[int, Worker] = {}
        self._ending = asyncio.Event()
        self._begun = asyncio.Event()  # a worker serves
        self._pages = WorkerPages(settings, self._metrics_ports)
        self._ports: dict[Port, socket.socket] = {}

    async def run(self) -> int:
        """Serve until a signal, and return the exit code. Raises StartRefused."""
        with ExitStack() as stack:
            for port, settings in ((Port.EXT_PROC, self._settings.ext_proc), (Port.HEALTH, self._settings.health)):
                self._ports[port] = stack.enter_context(bound_port(settings))
            metrics_port = await started_port(self._pages)
            loop = asyncio.get_running_loop()
            for number in _SIGNALS:
                loop.add_signal_handler(number, self._signalled, number)
            try:
                code = await self._serve(metrics_port)
            finally:
                await self._pages.stop()
            return code

    async def _serve(self, metrics_port: int) -> int:
        first = asyncio.create_task(self._keep(0))
        begun = asyncio.create_task(self._begun.wait())
        await asyncio.wait((first, begun), return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        if first.done():
            return first.result()  # the worker has logged the reason
        tasks = [first, *(asyncio.create_task(self._keep(number)) for number in range(1, self._count))]
        accepting = [asyncio.create_task(self._accept(port)) for port in self._ports]
        names = {f"{port.name.lower()}_port": bound.getsockname()[1] for port, bound in self._ports.items()}
        _log.info("serving", extra={**names, "metrics_port": metrics_port, "workers": self._count})
        codes = await asyncio.gather(*tasks)
        for task in accepting:
            task.cancel()
        return max(codes)

    async def _keep(self, number: int) -> int:
        """Run a worker, restart it when it crashes, and return the last exit code."""
        code, has_crashed = 0, False
        while not self._ending.is_set():
            worker = await self._spawn(number)
            worker.is_replacement = has_crashed
            try:
                code = await worker.process.wait()
            finally:
                asyncio.get_running_loop().remove_reader(worker.control.fileno())
                worker.control.close()
                del self._workers[number]
                self._pages.ended(number)
            if self._ending.is_set() or not self._begun.is_set():
                code = 0 if -code in _SIGNALS else code  # a second signal found it at its very end
                break
            _log.error("worker %d ended with code %d; another one starts", number, code)
            code, has_crashed = 0, True
            await asyncio.sleep(_RESTART_SECONDS)
        return code

    async def _spawn(self, number: int) -> Worker:
        ours, theirs = control_pair()
        numbers = {port: bound.getsockname()[1] for port, bound in self._ports.items()}
        role = WorkerRole(number, self._count, theirs.fileno(), numbers[Port.EXT_PROC], numbers[Port.HEALTH])
        process = await asyncio.create_subprocess_exec(
            *self._command, env={**os.environ, VARIABLE: role.encoded()}, pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL
        )
        theirs.close()
        worker = self._workers[number] = Worker(number, process, ours)
        asyncio.get_running_loop().add_reader(ours.fileno(), self._message_received, worker)
        if self._ending.is_set():  # it started after the signal was passed on
            process.terminate()
        return worker

    def _message_received(self, worker: Worker) -> None:
        try:
            message = worker.control.recv(_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if message.startswith(b"r"):
            worker.metrics_port = int(message[1:])
            if worker.is_replacement:  # it has read the configuration again
                for other in self._workers.values():
                    if other is not worker:
                        other.process.send_signal(signal.SIGHUP)
            self._begun.set()
        elif message == b"-":
            worker.connections -= 1
        elif not message:
            asyncio.get_running_loop().remove_reader(worker.control.fileno())

    def _metrics_ports(self) -> dict[int, int | None]:
        serving = {worker.number: worker.metrics_port for worker in self._workers.values()}
        return {number: serving.get(number) for number in range(self._count)}

    async def _accept(self, port: Port) -> None:
        loop, bound = asyncio.get_running_loop(), self._ports[port]
        while True:
            try:
                connection, _ = await loop.sock_accept(bound)
            except OSError:
                await asyncio.sleep(_RESTART_SECONDS)
                continue
            self._place(port, connection)

    def _place(self, port: Port, connection: socket.socket) -> None:
        """Hand a connection over to the worker with the fewest connections."""
        serving = [worker for worker in self._workers.values() if worker.metrics_port is not None]
        for worker in sorted(serving, key=lambda worker: worker.connections):
            if hand_over(worker.control, port, connection):
                worker.connections += port is Port.EXT_PROC
                return
        connection.close()

    def _signalled(self, number: signal.Signals) -> None:
        if number is not signal.SIGHUP:
            self._ending.set()
        for worker in self._workers.values():
            with suppress(ProcessLookupError):
                worker.process.send_signal(number)


def supervise(settings: ServeSettings, count: int, *, needs_store: bool) -> int:
    """Run workers until a signal, and return the exit code. Raises StartRefused."""
    command = [sys.executable, "-m", "endpick", *sys.argv[1:]]
    with ExitStack() as stack:
        if needs_store:
            command.append(f"--state-url=local://{stack.enter_context(tempfile.TemporaryDirectory(prefix='endpick-'))}")
        return asyncio.run(Supervisor(settings, count, command).run())
