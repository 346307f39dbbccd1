"""Reflection as grpcurl uses it."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from endpick._proto.ext_proc_pb2 import ProcessingRequest
from endpick.transport.methods import EXT_PROC_SERVICE
from endpick.transport.services import HEALTH_SERVICE
from integration.transport.conftest import Serving

pytestmark = pytest.mark.asyncio


async def ask(serving: Serving, **question: str) -> reflection_pb2.ServerReflectionResponse:
    call = reflection_pb2_grpc.ServerReflectionStub(serving.channel()).ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(**question))
    answer = await call.read()
    call.cancel()
    return answer


def files(answer: reflection_pb2.ServerReflectionResponse) -> list[descriptor_pb2.FileDescriptorProto]:
    return [descriptor_pb2.FileDescriptorProto.FromString(each) for each in answer.file_descriptor_response.file_descriptor_proto]


def by_dependency(found: list[descriptor_pb2.FileDescriptorProto]) -> list[descriptor_pb2.FileDescriptorProto]:
    """Each file after those it imports."""
    return sorted(found, key=lambda file: len(file.dependency))


async def test_services_are_listed(open_transport):
    async with open_transport() as serving:
        answer = await ask(serving, list_services="")
        assert [service.name for service in answer.list_services_response.service] == [
            EXT_PROC_SERVICE,
            HEALTH_SERVICE,
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        ]


async def test_described_messages_are_those_of_the_port(open_transport):
    async with open_transport() as serving:
        pool = descriptor_pool.DescriptorPool()
        for file in by_dependency(files(await ask(serving, file_containing_symbol=EXT_PROC_SERVICE))):
            pool.Add(file)
        method = pool.FindServiceByName(EXT_PROC_SERVICE).methods_by_name["Process"]
        built = message_factory.GetMessageClass(method.input_type)()
        built.request_body.body = b"prompt"
        built.request_body.end_of_stream = True
        assert ProcessingRequest.FromString(built.SerializeToString()).request_body.body == b"prompt"
        assert "endpick" not in str(files(await ask(serving, file_containing_symbol=EXT_PROC_SERVICE)))


async def test_symbols_are_found_with_their_file(open_transport):
    async with open_transport() as serving:
        for symbol in (HEALTH_SERVICE, "grpc.health.v1.HealthCheckRequest"):
            [file] = files(await ask(serving, file_containing_symbol=symbol))
            assert file.package == "grpc.health.v1"


async def test_unknown_names_are_not_found(open_transport):
    async with open_transport() as serving:
        for question in ({"file_containing_symbol": "no.Such"}, {"file_by_filename": "no.proto"}, {"all_extension_numbers_of_type": "x"}):
            assert (await ask(serving, **question)).error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
