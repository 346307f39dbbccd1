"""gRPC server reflection, so that grpcurl and its like can list and call what a port serves."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from endpick._proto import ext_proc_pb2
from endpick.extproc.stream import CloseCause, ProtocolError, Status
from endpick.transport.server import EXT_PROC_SERVICE, Method, Methods

__all__ = ["reflection_methods"]

_REFLECTION_SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""The same messages under two names; older clients know only the second."""
_NOT_FOUND = 5
_UNIMPLEMENTED = 12


def reflection_methods(methods: Methods) -> dict[str, Method]:
    """The reflection service for a port that serves `methods`; it names itself as well."""
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
            ProtocolError: INVALID_ARGUMENT for bytes that are no question.
        """
        try:
            request = reflection_pb2.ServerReflectionRequest.FromString(message)
        except DecodeError as error:
            raise ProtocolError(Status.INVALID_ARGUMENT, "not a ServerReflectionRequest") from error
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
                response.error_response.error_code = _UNIMPLEMENTED
                response.error_response.error_message = "there are no extensions here"
        return response

    def _describe(self, name: str, wanted: str, response: reflection_pb2.ServerReflectionResponse) -> None:
        """Add the file and all that it imports; clients need not ask again."""
        if name not in self._files:
            response.error_response.error_code = _NOT_FOUND
            response.error_response.error_message = f"nothing here is called {wanted}"
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
    """Our ext_proc messages under the package that the protocol gives them, with the service that uses them.

    They are compiled under a private package and hold only the fields that we know; on the wire there is no difference.
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
