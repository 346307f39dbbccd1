"""The gRPC health and reflection services."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from functools import cache

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2

from endpick.extproc.stream import GrpcStatus, ProtocolError
from endpick.requests.model import CloseCause
from endpick.transport.methods import EXT_PROC_SERVICE, Method, Methods, ReplySession

HEALTH_SERVICE = "grpc.health.v1.Health"
LIVENESS = "liveness"
READINESS = "readiness"
SERVICE_NAMES = ("", LIVENESS, READINESS, EXT_PROC_SERVICE)

_ServingStatus = health_pb2.HealthCheckResponse.ServingStatus


def health_methods(board: HealthBoard) -> dict[str, Method]:
    """Return the methods of the gRPC health service, by path."""
    return {
        f"/{HEALTH_SERVICE}/Check": Method(lambda: ReplySession(lambda message: _check(board, message), unary=True)),
        f"/{HEALTH_SERVICE}/List": Method(lambda: ReplySession(lambda message: _list(board, message), unary=True)),
        f"/{HEALTH_SERVICE}/Watch": Method(lambda: WatchSession(board), holds_drain=False),
    }


class HealthStatus(IntEnum):
    """Serving statuses of the gRPC health protocol."""

    UNKNOWN = 0
    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


class HealthBoard:
    """Status by service name; initially live and not ready."""

    def __init__(self) -> None:
        self._statuses = dict.fromkeys(SERVICE_NAMES, HealthStatus.NOT_SERVING)
        self._statuses[LIVENESS] = HealthStatus.SERVING
        self._watchers: set[Callable[[], None]] = set()

    def __call__(self, service: str) -> HealthStatus:
        """Return the status of a service name, also if it is unknown."""
        return self._statuses[self.name_for(service)]

    def name_for(self, service: str) -> str:
        """Unknown names follow readiness, as probes may ask for any."""
        return service if service in self._statuses else READINESS

    @property
    def statuses(self) -> dict[str, HealthStatus]:
        """The statuses by service name, as a copy."""
        return dict(self._statuses)

    @property
    def watched(self) -> bool:
        """Whether a client watches a status."""
        return bool(self._watchers)

    def set(self, service: str, status: HealthStatus) -> None:
        """Set the status of one service name, and notify watchers if it changes."""
        if self._statuses.get(service) is not status:
            self._statuses[service] = status
            self._notify()

    def set_ready(self, ready: bool) -> None:
        """Set the status of every name but `liveness`, and notify watchers."""
        status = HealthStatus.SERVING if ready else HealthStatus.NOT_SERVING
        for service in self._statuses:
            if service != LIVENESS:
                self._statuses[service] = status
        self._notify()

    def watch(self, watcher: Callable[[], None]) -> Callable[[], None]:
        """Call `watcher` after each change; returns a function to stop."""
        self._watchers.add(watcher)
        return lambda: self._watchers.discard(watcher)

    def _notify(self) -> None:
        for watcher in tuple(self._watchers):
            watcher()


class WatchSession:
    """Sends the status of one name, and its changes."""

    finished = False

    def __init__(self, board: HealthBoard) -> None:
        self._board = board
        self._service = ""
        self._sent: HealthStatus | None = None
        self._changed: asyncio.Future[None] | None = None
        self._end_watch: Callable[[], None] | None = None

    @property
    def waiting(self) -> Awaitable[object] | None:
        """Resolves at the next change."""
        return self._changed

    def receive(self, message: bytes) -> Sequence[bytes]:
        if self._end_watch is not None:
            raise ProtocolError(GrpcStatus.INVALID_ARGUMENT, "a health watch takes one request")
        self._service = self._board.name_for(_requested_service(message))
        self._end_watch = self._board.watch(self._wake)
        return self.resume(None)

    def resume(self, result: object) -> Sequence[bytes]:
        """Return the status if it differs from the last one sent, and await the next change."""
        self._changed = asyncio.get_running_loop().create_future()
        status = self._board(self._service)
        if status is self._sent:
            return ()
        self._sent = status
        return (_response(status),)

    def fail(self, exception: BaseException) -> Sequence[bytes]:
        """See `StreamSession`; never called, because `waiting` does not raise."""
        return ()

    def close(self, cause: CloseCause) -> None:
        """Stop watching; idempotent."""
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


_REFLECTION_SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""Older clients know only the second."""


def reflection_methods(methods: Methods) -> dict[str, Method]:
    """Return the methods of the gRPC reflection service, which lists `methods` and itself."""
    services = tuple(sorted({path.split("/")[1] for path in methods} | set(_REFLECTION_SERVICES)))
    method = Method(lambda: ReplySession(lambda message: _answer(services, message), unary=False), holds_drain=False)
    return {f"/{service}/ServerReflectionInfo": method for service in _REFLECTION_SERVICES}


def _answer(services: tuple[str, ...], message: bytes) -> bytes:
    from grpc_reflection.v1alpha.reflection import ReflectionServicer  # noqa: PLC0415 - only tools ask
    from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest  # noqa: PLC0415

    try:
        request = ServerReflectionRequest.FromString(message)
    except DecodeError as error:
        raise ProtocolError(GrpcStatus.INVALID_ARGUMENT, "not a ServerReflectionRequest") from error
    servicer = ReflectionServicer(services, _descriptors())
    response: bytes = next(servicer.ServerReflectionInfo([request], None)).SerializeToString()
    return response


@cache
def _descriptors() -> DescriptorPool:
    from grpc_reflection.v1alpha import reflection_pb2  # noqa: PLC0415

    from endpick._proto import ext_proc_pb2  # noqa: PLC0415

    pool = DescriptorPool()
    for descriptor in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR, *ext_proc_pb2.DESCRIPTOR.dependencies):
        _add(pool, descriptor)
    pool.AddSerializedFile(_ext_proc_file(ext_proc_pb2.DESCRIPTOR).SerializeToString())
    return pool


def _add(pool: DescriptorPool, file: FileDescriptor) -> None:
    for imported in file.dependencies:
        _add(pool, imported)
    pool.AddSerializedFile(file.serialized_pb)


def _ext_proc_file(ours: FileDescriptor) -> FileDescriptorProto:
    """The ext_proc service under its public package; endpick compiles a subset of the messages under a private one."""
    file = FileDescriptorProto()
    ours.CopyToProto(file)
    private, file.package = f".{file.package}.", EXT_PROC_SERVICE.rpartition(".")[0]
    file.name = "envoy/service/ext_proc/v3/external_processor.proto"
    for message in file.message_type:
        _rename(message, private, f".{file.package}.")
    service = file.service.add(name=EXT_PROC_SERVICE.rpartition(".")[2])
    service.method.add(
        name="Process",
        input_type=f".{file.package}.ProcessingRequest",
        output_type=f".{file.package}.ProcessingResponse",
        client_streaming=True,
        server_streaming=True,
    )
    return file


def _rename(message: DescriptorProto, private: str, public: str) -> None:
    for field in message.field:
        if field.type_name.startswith(private):
            field.type_name = public + field.type_name.removeprefix(private)
    for nested in message.nested_type:
        _rename(nested, private, public)
