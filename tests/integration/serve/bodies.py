"""Requests with a given body, for tests of a served process."""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from endpick._proto import ext_proc_pb2 as pb
from integration.plugins.serving import METHOD, Picker


async def begin(picker: Picker, body: bytes | None, path: str, headers: Mapping[str, str] | None = None) -> grpc.aio.StreamStreamCall:
    """Send a request; without a body, for those refused at their headers: writing to a stream that has ended is an error."""
    call = picker.channel.stream_stream(METHOD, pb.ProcessingRequest.SerializeToString, pb.ProcessingResponse.FromString)()
    names = {":path": path, ":method": "POST", **(headers or {})}
    written = pb.HeaderMap(headers=[pb.HeaderValue(key=key, raw_value=value.encode()) for key, value in names.items()])
    await call.write(pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=written)))
    if body is not None:
        await call.write(pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=True)))
    return call


async def send(
    picker: Picker, body: bytes | None, path: str = "/v1/completions", headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """The status and body of a refusal, or 0 and the body for the model server."""
    call = await begin(picker, body, path, headers)
    sent = b""
    while True:
        answer = await call.read()
        if answer.WhichOneof("response") == "immediate_response":
            return answer.immediate_response.status.code, answer.immediate_response.body
        if answer.WhichOneof("response") == "request_body":
            streamed = answer.request_body.response.body_mutation.streamed_response
            sent += streamed.body
            if streamed.end_of_stream:
                call.cancel()
                return 0, sent
