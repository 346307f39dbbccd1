"""Reflection as grpcurl uses it: list, describe, and build messages from the description."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from endpick._proto.ext_proc_pb2 import ProcessingRequest
from endpick.transport.health import HEALTH_SERVICE
from endpick.transport.methods import EXT_PROC_SERVICE
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


async def test_services_are_listed(open_transport):
    async with open_transport() as serving:
        answer = await ask(serving, list_services="")
        assert [service.name for service in answer.list_services_response.service] == [
            EXT_PROC_SERVICE,
            HEALTH_SERVICE,
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        ]


async def test_messages_built_from_the_description_are_the_ones_we_read(open_transport):
    async with open_transport() as serving:
        pool = descriptor_pool.DescriptorPool()
        for file in reversed(files(await ask(serving, file_containing_symbol=EXT_PROC_SERVICE))):
            pool.Add(file)
        method = pool.FindServiceByName(EXT_PROC_SERVICE).methods_by_name["Process"]
        built = message_factory.GetMessageClass(method.input_type)()
        built.request_body.body = b"prompt"
        built.request_body.end_of_stream = True
        assert ProcessingRequest.FromString(built.SerializeToString()).request_body.body == b"prompt"
        assert "endpick" not in str(files(await ask(serving, file_containing_symbol=EXT_PROC_SERVICE)))


@pytest.mark.parametrize("symbol", [HEALTH_SERVICE, f"{HEALTH_SERVICE}.Check", "grpc.health.v1.HealthCheckRequest"])
async def test_a_symbol_is_found_with_its_file(open_transport, symbol):
    async with open_transport() as serving:
        [file] = files(await ask(serving, file_containing_symbol=symbol))
        assert file.package == "grpc.health.v1"


@pytest.mark.parametrize("question", [{"file_containing_symbol": "no.Such"}, {"file_by_filename": "no.proto"}])
async def test_what_is_not_there_is_not_found(open_transport, question):
    async with open_transport() as serving:
        assert (await ask(serving, **question)).error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


async def test_extensions_are_not_offered(open_transport):
    async with open_transport() as serving:
        assert (await ask(serving, all_extension_numbers_of_type="x")).error_response.error_code == grpc.StatusCode.UNIMPLEMENTED.value[0]
