"""What reflection tells: the protobuf files of the services of a port. Imported when a client asks for the first time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from endpick._proto import ext_proc_pb2
from endpick.extproc.stream import GrpcStatus, ProtocolError
from endpick.transport.methods import EXT_PROC_SERVICE

__all__ = ["answer"]


def answer(services: tuple[str, ...], message: bytes) -> bytes:
    """The reply to one serialised question about a port with these services.

    Raises:
        ProtocolError: INVALID_ARGUMENT for bytes that are not a question.
    """
    try:
        request = reflection_pb2.ServerReflectionRequest.FromString(message)
    except DecodeError as error:
        raise ProtocolError(GrpcStatus.INVALID_ARGUMENT, "not a ServerReflectionRequest") from error
    reply: bytes = _catalogue(services).answer(request).SerializeToString()
    return reply


@cache
def _catalogue(services: tuple[str, ...]) -> _Catalogue:
    return _Catalogue(services, _described())


class _Catalogue:
    """Services by name, and the files that describe them and their messages."""

    def __init__(self, services: Sequence[str], files: Iterable[descriptor_pb2.FileDescriptorProto]) -> None:
        self._services = services
        self._files = {file.name: file for file in files}
        self._symbols = {symbol: file.name for file in self._files.values() for symbol in _symbols(file)}

    def answer(self, request: reflection_pb2.ServerReflectionRequest) -> reflection_pb2.ServerReflectionResponse:
        response = reflection_pb2.ServerReflectionResponse(valid_host=request.host, original_request=request)
        match request.WhichOneof("message_request"):
            case "list_services":
                for service in self._services:
                    response.list_services_response.service.add(name=service)
            case "file_by_filename":
                self._describe(request.file_by_filename, request.file_by_filename, response)
            case "file_containing_symbol":
                symbol = request.file_containing_symbol
                self._describe(self._symbols.get(symbol) or self._symbols.get(symbol.rpartition(".")[0], ""), symbol, response)
            case _:
                response.error_response.error_code = GrpcStatus.UNIMPLEMENTED
                response.error_response.error_message = "this server has no extensions"
        return response

    def _describe(self, name: str, wanted: str, response: reflection_pb2.ServerReflectionResponse) -> None:
        """Add the file and all that it imports, so that clients need not ask again."""
        if name not in self._files:
            response.error_response.error_code = GrpcStatus.NOT_FOUND
            response.error_response.error_message = f"this server has no file or symbol '{wanted}'"
            return
        names = [name]
        for each in names:
            response.file_descriptor_response.file_descriptor_proto.append(self._files[each].SerializeToString())
            names += [imported for imported in self._files[each].dependency if imported not in names]


def _described() -> list[descriptor_pb2.FileDescriptorProto]:
    generated = (ext_proc_pb2.DESCRIPTOR, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR)
    return [_ext_proc_file(), *(file for descriptor in generated for file in _files(descriptor) if not file.package.startswith("endpick."))]


def _files(descriptor: FileDescriptor) -> list[descriptor_pb2.FileDescriptorProto]:
    """A file and all that it imports."""
    proto = descriptor_pb2.FileDescriptorProto()
    descriptor.CopyToProto(proto)
    return [proto, *(file for imported in descriptor.dependencies for file in _files(imported))]


def _symbols(file: descriptor_pb2.FileDescriptorProto) -> Iterable[str]:
    for kind in (file.service, file.message_type, file.enum_type):
        for item in kind:
            yield f"{file.package}.{item.name}" if file.package else item.name


def _ext_proc_file() -> descriptor_pb2.FileDescriptorProto:
    """The ext_proc messages of endpick under the package of the protocol, with the service that uses them.

    endpick compiles them under a private package, with only the fields that it reads or writes; on the wire there is no difference.
    """
    file = descriptor_pb2.FileDescriptorProto()
    ext_proc_pb2.DESCRIPTOR.CopyToProto(file)
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


def _rename(message: descriptor_pb2.DescriptorProto, private: str, public: str) -> None:
    for field in message.field:
        if field.type_name.startswith(private):
            field.type_name = public + field.type_name.removeprefix(private)
    for nested in message.nested_type:
        _rename(nested, private, public)
