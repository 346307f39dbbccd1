"""The gRPC health service: the status of each service name, for clients that ask once and clients that watch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from enum import IntEnum
from itertools import islice

from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2

from endpick.extproc.stream import GrpcStatus, ProtocolError
from endpick.requests.model import CloseCause
from endpick.transport.methods import EXT_PROC_SERVICE, Method

__all__ = ["HEALTH_SERVICE", "LIVENESS", "READINESS", "HealthBoard", "HealthStatus", "health_methods"]

HEALTH_SERVICE = "grpc.health.v1.Health"
LIVENESS = "liveness"
READINESS = "readiness"
SERVICE_NAMES = ("", LIVENESS, READINESS, EXT_PROC_SERVICE)

MOST_WOKEN = 128
"""Watchers that hear of a change in one turn of the event loop: each has something written, and clients may have ten thousands of them."""

_ServingStatus = health_pb2.HealthCheckResponse.ServingStatus


def health_methods(board: HealthBoard) -> dict[str, Method]:
    """`Check`, `List` and `Watch` of the health service."""
    return {
        f"/{HEALTH_SERVICE}/Check": Method(lambda: UnarySession(lambda message: _check(board, message))),
        f"/{HEALTH_SERVICE}/List": Method(lambda: UnarySession(lambda message: _list(board, message))),
        f"/{HEALTH_SERVICE}/Watch": Method(lambda: WatchSession(board), holds_drain=False),
    }


class HealthStatus(IntEnum):
    """The statuses of grpc.health.v1."""

    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class HealthBoard:
    """The status of each service name; at first alive and not ready."""

    def __init__(self) -> None:
        self._statuses = dict.fromkeys(SERVICE_NAMES, HealthStatus.NOT_SERVING)
        self._statuses[LIVENESS] = HealthStatus.SERVING
        self._watchers: set[Callable[[], None]] = set()
        self._to_wake: Iterator[Callable[[], None]] = iter(())
        self._wakes_more = False
        """Whether the event loop is to call the rest of them."""

    def __call__(self, service: str) -> HealthStatus:
        """The status of one name; of a name that the board does not have, readiness, as probes ask for names of their own."""
        return self._statuses[self.name_for(service)]

    def name_for(self, service: str) -> str:
        """The name on the board that stands for a name that a probe gives."""
        return service if service in self._statuses else READINESS

    @property
    def statuses(self) -> dict[str, HealthStatus]:
        """Every name with its status; a copy."""
        return dict(self._statuses)

    @property
    def watched(self) -> bool:
        """Whether a client watches."""
        return bool(self._watchers)

    def set(self, service: str, status: HealthStatus) -> None:
        """Change one name; watchers are called if that is a change."""
        if self._statuses.get(service) is not status:
            self._statuses[service] = status
            self._notify()

    def set_ready(self, ready: bool) -> None:
        """Change every name but `liveness`: ready to take requests, or not."""
        status = HealthStatus.SERVING if ready else HealthStatus.NOT_SERVING
        for service in self._statuses:
            if service != LIVENESS:
                self._statuses[service] = status
        self._notify()

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call `watcher`, without arguments, after each change; returns the function that ends the watch.

        Of more than `MOST_WOKEN` watchers the rest is called in later turns of the event loop, once for several changes.
        """
        self._watchers.add(watcher)
        return lambda: self._watchers.discard(watcher)

    def _notify(self) -> None:
        """Have all called from the first on: those that wait to be called know of this change when they are."""
        self._to_wake = iter(tuple(self._watchers))
        if not self._wakes_more:
            self._wake_some()

    def _wake_some(self) -> None:
        woken = 0
        for watcher in islice(self._to_wake, MOST_WOKEN):
            watcher()
            woken += 1
        self._wakes_more = woken == MOST_WOKEN
        if self._wakes_more:
            asyncio.get_running_loop().call_soon(self._wake_some)


class UnarySession:
    """One message, one reply."""

    waiting: Awaitable[object] | None = None

    def __init__(self, reply: Callable[[bytes], bytes]) -> None:
        self._reply = reply
        self.finished = False

    def receive(self, message: bytes) -> Sequence[bytes]:
        """The reply to the only message.

        Raises:
            ProtocolError: INVALID_ARGUMENT for bytes that are not a request.
        """
        self.finished = True
        return (self._reply(message),)

    def resume(self, result: object) -> Sequence[bytes]:
        """Never called: nothing is awaited."""
        return ()

    def fail(self, exception: BaseException) -> Sequence[bytes]:
        """Never called: nothing is awaited."""
        return ()

    def close(self, cause: CloseCause) -> None:
        """Nothing is held."""


class WatchSession:
    """Sends one client the status of one name, now and after each change, until the client ends the stream."""

    finished = False

    def __init__(self, board: HealthBoard) -> None:
        self._board = board
        self._service = ""
        self._told: HealthStatus | None = None
        self._changed: asyncio.Future[None] | None = None
        self._end_watch: Callable[[], None] | None = None

    @property
    def waiting(self) -> Awaitable[object] | None:
        """Resolves at the next change of anything on the board."""
        return self._changed

    def receive(self, message: bytes) -> Sequence[bytes]:
        """The status now.

        Raises:
            ProtocolError: INVALID_ARGUMENT for bytes that are not a request, or for a second request.
        """
        if self._end_watch is not None:
            raise ProtocolError(GrpcStatus.INVALID_ARGUMENT, "a health watch takes one request")
        # Not the name itself, which may be long, and is kept for as long as the client watches.
        self._service = self._board.name_for(_requested_service(message))
        self._end_watch = self._board.watch(self._wake)
        return self.resume(None)

    def resume(self, result: object) -> Sequence[bytes]:
        """The status if it differs from the last one sent."""
        self._changed = asyncio.get_running_loop().create_future()
        status = self._board(self._service)
        if status is self._told:
            return ()
        self._told = status
        return (_response(status),)

    def fail(self, exception: BaseException) -> Sequence[bytes]:
        """Never called: the future is only ever resolved."""
        return ()

    def close(self, cause: CloseCause) -> None:
        """End the watch."""
        if self._end_watch is not None:
            self._end_watch()
        if self._changed is not None:
            self._changed.cancel()
            self._changed = None

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


def _check(board: HealthBoard, message: bytes) -> bytes:
    return _response(board(_requested_service(message)))


def _list(board: HealthBoard, message: bytes) -> bytes:
    _parse(health_pb2.HealthListRequest(), message)
    response = health_pb2.HealthListResponse()
    for service, status in board.statuses.items():
        response.statuses[service].status = status
    serialised: bytes = response.SerializeToString()
    return serialised


def _requested_service(message: bytes) -> str:
    request = health_pb2.HealthCheckRequest()
    _parse(request, message)
    service: str = request.service
    return service


def _parse(into: Message, message: bytes) -> None:
    try:
        into.ParseFromString(message)
    except DecodeError as error:
        raise ProtocolError(GrpcStatus.INVALID_ARGUMENT, f"not a {into.DESCRIPTOR.full_name}") from error


def _response(status: HealthStatus) -> bytes:
    serialised: bytes = health_pb2.HealthCheckResponse(status=_ServingStatus.Name(status)).SerializeToString()
    return serialised
