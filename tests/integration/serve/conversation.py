"""A gateway's part of whole conversations with `endpick serve`, without a gateway: requests, and what a model server answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import grpc

from endpick._proto import ext_proc_pb2 as pb
from integration.plugins.serving import DESTINATION, METHOD, Picker

USAGE = {"prompt_tokens": 20, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}
ANSWER = json.dumps({"model": "m", "choices": [], "usage": USAGE}).encode()
STREAM = [b'data: {"model":"m","choices":[{"delta":{"content":"a"}}]}\n\n'] * 3
END_OF_STREAM = [b"data: " + json.dumps({"model": "m", "choices": [], "usage": USAGE}).encode() + b"\n\n", b"data: [DONE]\n\n"]

SCORES = "x-gateway-destination-endpoint-scores"


@dataclass
class Exchange:
    """One request and its answer."""

    call: grpc.aio.StreamStreamCall
    scores: Mapping[str, float] = field(default_factory=dict)
    """Of each candidate, where the decision tells them."""

    @classmethod
    async def begin(
        cls, picker: Picker, body: Mapping[str, object], headers: Mapping[str, str] | None = None, path: str = "/v1/chat/completions"
    ) -> Exchange:
        """Send a request."""
        call = picker.channel.stream_stream(METHOD, pb.ProcessingRequest.SerializeToString, pb.ProcessingResponse.FromString)()
        names = {":path": path, ":method": "POST", "content-type": "application/json", **(headers or {})}
        await call.write(pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=_headers(names))))
        await call.write(pb.ProcessingRequest(request_body=pb.HttpBody(body=json.dumps(body).encode(), end_of_stream=True)))
        return cls(call)

    async def decided(self) -> tuple[int, dict[str, str]]:
        """The status of a refusal, or 0; and the headers that are set: on the request, or on the refusal."""
        answer = await self.call.read()
        if answer.WhichOneof("response") == "immediate_response":
            refusal = answer.immediate_response
            return refusal.status.code, _set(refusal.headers)
        told = dict(answer.dynamic_metadata.items()).get("envoy.lb", {})
        self.scores = dict(told[SCORES]) if SCORES in told else {}
        while (reply := await self.call.read()).WhichOneof("response") != "request_body" or not _is_last(reply):
            pass
        return 0, _set(answer.request_headers.response.header_mutation)

    async def refused_later(self) -> int:
        """The status with which the request is taken back after it was routed."""
        answer = await self.call.read()
        return answer.immediate_response.status.code

    async def answer(self, *, streamed: bool = False) -> None:
        """Be the model server: answer with usage, in one piece or as events."""
        kind = "text/event-stream" if streamed else "application/json"
        head = pb.HttpHeaders(headers=_headers({":status": "200", "content-type": kind}))
        await self.call.write(pb.ProcessingRequest(response_headers=head))
        chunks = [*STREAM, *END_OF_STREAM] if streamed else [ANSWER]
        for number, chunk in enumerate(chunks, 1):
            await self.call.write(pb.ProcessingRequest(response_body=pb.HttpBody(body=chunk, end_of_stream=number == len(chunks))))
        await self.call.done_writing()
        while await self.call.read() is not grpc.aio.EOF:
            pass


async def converse(
    picker: Picker, body: Mapping[str, object], headers: Mapping[str, str] | None = None, *, streamed: bool = False
) -> dict[str, str]:
    """A request that is routed and answered; the headers it got."""
    exchange = await Exchange.begin(picker, {**body, "stream": streamed}, headers)
    status, set_headers = await exchange.decided()
    assert status == 0
    assert DESTINATION in set_headers
    await exchange.answer(streamed=streamed)
    return set_headers


def _headers(names: Mapping[str, str]) -> pb.HeaderMap:
    return pb.HeaderMap(headers=[pb.HeaderValue(key=key, raw_value=value.encode()) for key, value in names.items()])


def _set(mutation: pb.HeaderMutation) -> dict[str, str]:
    return {one.header.key: one.header.raw_value.decode() for one in mutation.set_headers}


def _is_last(reply: pb.ProcessingResponse) -> bool:
    mutation = reply.request_body.response.body_mutation
    return not mutation.HasField("streamed_response") or mutation.streamed_response.end_of_stream
