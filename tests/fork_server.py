"""The process that forks; see `forked`."""

from __future__ import annotations

import array
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from importlib.metadata import entry_points
from pathlib import Path

_PR_SET_PDEATHSIG = 1
IMPORTED = (
    "endpick.cli.describe",
    "endpick.cli.doctor",
    "endpick.cli.listing",
    "endpick.cli.test",
    "endpick.cli.validate",
    "endpick.cli.plan",
    "endpick.cli.serve",
    "endpick.cli.serve_options",
    "endpick.cli.validate",
    "endpick.host.planning.planner",
    "endpick.cli.new",
    "endpick.serve.main",
    "endpick.serve.process",
    "endpick_lab.server",
    "endpick.testing.kit",
    "endpick.transport.h2.server",
    "prometheus_client",
    "cookiecutter.main",
    "aiohttp.web",
    "uvloop",
    "orjson",
    "xxhash",
)
_CONFIG = """
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: random-picker}]
schedulingProfiles: [{name: default, plugins: [{pluginRef: random-picker}]}]
"""


def main(link: socket.socket) -> None:
    """Fork for each request, until the process that runs the tests closes its end."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in (*IMPORTED, *_builtin_plugins()):
        importlib.import_module(name)
    from endpick.config import load_config

    load_config(text=_CONFIG, name="config.yaml")  # makes the models of the configuration
    gc.collect()
    gc.freeze()
    imported = " ".join(sorted({name.partition(".")[0] for name in sys.modules} - {"endpick", "__main__"})).encode()
    link.sendall(len(imported).to_bytes(4, "big") + imported)
    while True:
        head, ancillary, _, _ = link.recvmsg(4, socket.CMSG_SPACE(3 * 4), socket.MSG_WAITALL)
        if len(head) < 4:
            return
        streams = array.array("i", ancillary[0][2])
        asked = json.loads(_received(link, int.from_bytes(head, "big")))
        told, tells = os.pipe()
        adopted, adopts = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid == 0:
                link.close()
                os.close(adopts)
                _die_with_the_tests(adopted)
                _go_on(asked, streams)
            os.write(tells, pid.to_bytes(4, "big"))
            os._exit(0)
        os.waitpid(between, 0)
        os.write(adopts, b"!")
        link.sendall(os.read(told, 4))
        for descriptor in (told, tells, adopted, adopts, *streams):
            os.close(descriptor)


def _builtin_plugins() -> set[str]:
    return {
        found.value.partition(":")[0] for found in entry_points(group="endpick.plugins.v1") if found.value.startswith("endpick_builtin.")
    }


def _received(link: socket.socket, size: int) -> bytes:
    text = b""
    while len(text) < size:
        text += link.recv(size - len(text))
    return text


def _die_with_the_tests(adopted: int) -> None:
    if not os.read(adopted, 1):  # comes when the process between has been waited for, so that this one belongs to the tests
        os._exit(1)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _go_on(asked: dict, streams: array.array) -> None:
    """Be the process that was asked for; does not return."""
    status = 1
    try:
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        os.closerange(3, 256)
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["cwd"])
        if asked["leads_a_session"]:
            os.setsid()
        _as_if_started(asked["arguments"])
        status = _run()
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                status = status or 120
        os._exit(status)


def _as_if_started(arguments: list[str]) -> None:
    from endpick import __main__ as module

    given = os.environ.get("PYTHONPATH", "")
    searched = [entry or str(Path.cwd()) for entry in given.split(os.pathsep)] if given else []
    installed = [entry for entry in sys.path[1:] if entry not in _SOURCES]  # without the directory of this file
    first = [] if os.environ.get("PYTHONSAFEPATH") else [str(Path.cwd())]
    sys.path[:] = [*first, *searched, *installed, *(entry for entry in _SOURCES if entry not in searched)]
    sys.argv[:] = [str(module.__file__), *arguments]
    importlib.invalidate_caches()
    sys.path_importer_cache.clear()
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _run() -> int:
    from endpick.__main__ import main

    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, int) or end.code is None:
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


_SOURCES = os.environ.get("PYTHONPATH", "").split(os.pathsep)

if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
