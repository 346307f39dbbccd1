"""The role of one process among the workers."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import Final

import msgspec

from endpick.serve.settings import ServeSettings
from endpick.transport.handover import Handover, Port

VARIABLE: Final = "ENDPICK_WORKER"  # of the environment


class WorkerRole(msgspec.Struct, frozen=True):
    """The number, ports and control socket of a worker, as its supervisor passes them on."""

    number: int
    of: int
    control: int  # file descriptor
    ext_proc_port: int
    health_port: int

    def encoded(self) -> str:
        """Return the role as JSON, for the environment variable of the worker."""
        return msgspec.json.encode(self).decode()


def worker_role() -> WorkerRole | None:
    """Return the role of this process; None if it is not a worker."""
    written = os.environ.get(VARIABLE)
    return None if written is None else msgspec.json.decode(written, type=WorkerRole)


def as_worker(settings: ServeSettings, role: WorkerRole) -> tuple[ServeSettings, Handover]:
    """Return the settings of a worker, and the handover through which it gets connections.

    The supervisor owns the ports; each worker has an equal share of the memory.
    """
    ports = {Port.EXT_PROC: role.ext_proc_port, Port.HEALTH: role.health_port}
    handover = Handover(socket.socket(fileno=role.control), ports, role.number)
    own = replace(
        settings,
        ext_proc=replace(settings.ext_proc, handover=handover, role=Port.EXT_PROC),
        health=replace(settings.health, handover=handover, role=Port.HEALTH),
        metrics_host="127.0.0.1",
        metrics_port=0,
        metrics_tls=None,
        max_memory_bytes=settings.max_memory_bytes // role.of,
    )
    return own, handover
