"""Runs `endpick serve` in this process, and is its gateway for one chat request."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc

from docs_pictures.observe import Observer, Stack
from endpick._proto.ext_proc_pb2 import HttpBody, HttpHeaders, ProcessingRequest, ProcessingResponse
from endpick.cli.serve import command
from endpick.installation import request_path
from endpick.transport.methods import EXT_PROC_PATH

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml, watchFile: true}}
- type: queue-scorer
- type: prefix-cache-scorer
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
dataLayer:
  discovery: {pluginRef: file-discovery}
"""
NO_ENDPOINTS = "endpoints: []\n"
"""At the start, so that when its data come changes nothing on the picture."""
ONE_ENDPOINT = 'endpoints: [{name: a, address: 127.0.0.1, port: "9"}]\n'
OPTIONS = ("--host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0", "--secure-serving=false", "--log-format=json")

REQUEST = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Say something."}]}
RESPONSE = {":status": "200", "content-type": "application/json"}
ANSWER = {"usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}}

PATIENCE_SECONDS = 20.0
"""For the endpoint to be found; the file is looked at once a second."""
REST_SECONDS = 0.3
"""Between two requests."""
LOOK_SECONDS = 0.01
"""Between two looks at what has been observed."""
SETTLED_SECONDS = 1.5
"""After a request, until the process has nothing more to do for it, also on a machine that is busy."""


@dataclass(frozen=True, slots=True)
class OneRun:
    """What was observed."""

    startup: tuple[Stack, ...]
    """From the verb to the log line that says that endpick serves."""
    request: tuple[Stack, ...]
    """One chat request, from its first byte to the end of its response."""


class RunFailed(Exception):  # noqa: N818 - endpick did not start, or routed nothing; the message is what it logged
    """The process did not do what it should; the message is what it said."""


def run() -> OneRun:
    """Start endpick, send a request, stop it. For the main thread of a process that has no other job.

    Raises:
        RunFailed: endpick did not start, or no request was routed.
    """
    if request_path() != "interpreted":
        raise RunFailed("a compiled request path makes calls that cannot be observed; use an editable installation")
    observer, said, gateways = Observer(), io.StringIO(), list[_Gateway]()

    def begin_traffic(port: int) -> None:
        gateways.append(_Gateway(port, observer, observer.end()))
        gateways[0].start()

    with TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stderr(said), _told_when_serving(begin_traffic):
        Path("config.yaml").write_text(CONFIG, encoding="utf-8")
        Path("endpoints.yaml").write_text(NO_ENDPOINTS, encoding="utf-8")
        context = command.make_context("serve", ["config.yaml", *OPTIONS])
        observer.begin()
        sys.setprofile(observer.profile)
        try:
            with contextlib.suppress(SystemExit):
                command.invoke(context)
        finally:
            sys.setprofile(None)
        for gateway in gateways:
            gateway.join()
    if not gateways or not gateways[0].routed:
        raise RunFailed(said.getvalue())
    return OneRun(gateways[0].startup, gateways[0].request)


@contextlib.contextmanager
def _told_when_serving(act: Callable[[int], None]) -> Iterator[None]:
    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage() == "serving":
                act(vars(record)["ext_proc_port"])

    logger, listener = logging.getLogger("endpick.serve"), Listener()
    logger.addHandler(listener)
    try:
        yield
    finally:
        logger.removeHandler(listener)


class _Gateway(threading.Thread):
    """Waits until endpick knows its endpoint, sends one request that is observed, and ends the process."""

    def __init__(self, port: int, observer: Observer, startup: tuple[Stack, ...]) -> None:
        super().__init__()
        self._port = port
        self._observer = observer
        self.startup = startup
        self.request: tuple[Stack, ...] = ()
        self.routed = False

    def run(self) -> None:
        try:
            Path("endpoints.yaml").write_text(ONE_ENDPOINT, encoding="utf-8")
            with grpc.insecure_channel(f"127.0.0.1:{self._port}", [("grpc.enable_http_proxy", 0)]) as channel:
                process = channel.stream_stream(EXT_PROC_PATH, ProcessingRequest.SerializeToString, ProcessingResponse.FromString)
                until = time.monotonic() + PATIENCE_SECONDS
                while not _is_routed(process) and time.monotonic() < until:
                    time.sleep(REST_SECONDS)
                time.sleep(SETTLED_SECONDS)
                self._observer.begin(callbacks_only=True)
                self.routed = _is_routed(process, self._observer.has_noted)
                time.sleep(SETTLED_SECONDS)
                self.request = self._observer.end()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)


def _is_routed(process: Callable[[Iterator[ProcessingRequest]], Any], was_called: Callable[[str], bool] = lambda _: True) -> bool:
    """One request and its response, in steps; False when endpick refused it.

    Neither the stream nor the headers get a reply, so `was_called` says when the next step may follow: else one read of the socket may
    bring two of them.
    """
    outgoing: queue.SimpleQueue[ProcessingRequest | None] = queue.SimpleQueue()
    replies = process(iter(outgoing.get, None))
    try:
        _wait_until(lambda: was_called("Session.__init__"))
        outgoing.put(ProcessingRequest(request_headers=_headers(REQUEST)))
        _wait_until(lambda: was_called("Session.receive"))
        outgoing.put(ProcessingRequest(request_body=_body(CHAT)))
        if next(replies).WhichOneof("response") == "immediate_response":
            return False
        next(replies)
        outgoing.put(ProcessingRequest(response_headers=_headers(RESPONSE)))
        next(replies)
        outgoing.put(ProcessingRequest(response_body=_body(ANSWER)))
        next(replies)
    finally:
        outgoing.put(None)
        list(replies)
    return True


def _wait_until(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not happened() and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)


def _headers(named: Mapping[str, str]) -> HttpHeaders:
    headers = HttpHeaders()
    for name, value in named.items():
        headers.headers.headers.add(key=name, raw_value=value.encode())
    return headers


def _body(content: object) -> HttpBody:
    return HttpBody(body=json.dumps(content).encode(), end_of_stream=True)
