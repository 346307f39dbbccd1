"""gRPC server reflection: lets tools such as grpcurl list and call the services of a port."""

from __future__ import annotations

from functools import cache

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from endpick.extproc.stream import GrpcStatus, ProtocolError
from endpick.transport.methods import EXT_PROC_SERVICE, Method, Methods, ReplySession

__all__ = ["reflection_methods"]

_REFLECTION_SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""The same messages under two names; older clients know only the second."""


def reflection_methods(methods: Methods) -> dict[str, Method]:
    """The reflection service for a port that serves `methods`; it lists itself as well."""
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
    """The files that describe the services of a port."""
    from grpc_health.v1 import health_pb2  # noqa: PLC0415
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
    """The ext_proc messages under their public package, with the service.

    endpick compiles them under a private package, with only the fields it uses; on the wire they are the same.
    """
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
