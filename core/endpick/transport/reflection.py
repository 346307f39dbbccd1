"""gRPC server reflection, with which tools such as grpcurl list and call the services of a port."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from endpick._proto import ext_proc_pb2
from endpick.extproc.stream import GrpcStatus, ProtocolError
from endpick.requests.model import CloseCause
from endpick.transport.server import EXT_PROC_SERVICE, Method, Methods

__all__ = ["reflection_methods"]

_REFLECTION_SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""The same messages under two names; older clients know only the second."""


def reflection_methods(methods: Methods) -> dict[str, Method]:
    """The reflection service for a port that serves `methods`; it lists itself as well."""
    services = sorted({path.split("/")[1] for path in methods} | set(_REFLECTION_SERVICES))
    catalogue = _Catalogue(services, _described())
    method = Method(lambda: ReflectionSession(catalogue), holds_drain=False)
    return {f"/{service}/ServerReflectionInfo": method for service in _REFLECTION_SERVICES}


class ReflectionSession:
    """Answers each question with one reply."""

    waiting: Awaitable[object] | None = None
    finished = False

    def __init__(self, catalogue: _Catalogue) -> None:
        self._catalogue = catalogue

    def receive(self, message: bytes) -> Sequence[bytes]:
        """The answer to one question.

        Raises:
            ProtocolError: INVALID_ARGUMENT for bytes that are not a question.
        """
        try:
            request = reflection_pb2.ServerReflectionRequest.FromString(message)
        except DecodeError as error:
            raise ProtocolError(GrpcStatus.INVALID_ARGUMENT, "not a ServerReflectionRequest") from error
        return (self._catalogue.answer(request).SerializeToString(),)

    def resume(self, result: object) -> Sequence[bytes]:
        """Never called: nothing is awaited."""
        return ()

    def fail(self, exception: BaseException) -> Sequence[bytes]:
        """Never called: nothing is awaited."""
        return ()

    def close(self, cause: CloseCause) -> None:
        """Nothing is held."""


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
