"""`vertexai-parser`: OpenAI requests in the gRPC messages of Vertex AI's prediction service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

from google.protobuf.message import Message

from endpick.api import ParsedRequest, Parser, PluginContext, Rejection, Usage
from endpick_builtin.parsers.grpc_bodies import answers_in, framed, http_bodies, request_in
from endpick_builtin.parsers.json_bodies import BodyReader
from endpick_builtin.parsers.model_field import with_model
from endpick_builtin.parsers.openai import CHAT, COMPLETIONS, OpenAIParserParameters, read_as
from endpick_builtin.parsers.openai_prompts import prompts_of
from endpick_builtin.parsers.openai_usage import from_body, from_events


class _HttpBody(Protocol):
    data: bytes


class _Request(Protocol):
    http_body: _HttpBody


class VertexAIParser(Parser[OpenAIParserParameters]):
    """Reads the OpenAI request that a `google.api.HttpBody` of the prediction service carries, and token counts from such answers.

    `ChatCompletions` carries chat; `RawPredict` and `StreamRawPredict` carry chat where the object has `messages`, else a completion.
    Frames that are compressed or cut off are answered with 400.
    """

    claims = (".PredictionService/ChatCompletions", ".PredictionService/StreamRawPredict", ".PredictionService/RawPredict")
    reads_usage = True

    def __init__(self, name: str, parameters: OpenAIParserParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._reader = BodyReader(parameters, context)

    def parse(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest | Rejection:
        """See the class."""
        message = request_in(body, http_bodies()[1])
        if isinstance(message, Rejection):
            return message
        payload = self._reader.read(_data(message))
        if isinstance(payload, Rejection):
            return payload
        api = CHAT if path.endswith("/ChatCompletions") or "messages" in payload else COMPLETIONS
        if api.prompts and len(prompts_of(payload.get(api.prompts))) > self.parameters.max_prompts:
            return self._reader.refused_for("maxPrompts", self.parameters.max_prompts)
        return read_as(api, payload)

    def rewrite_model(self, body: bytes, parsed: ParsedRequest, model: str) -> bytes:
        """Exchange the model name in the object; fields that are not known here stay."""
        message = request_in(body, http_bodies()[1])
        if isinstance(message, Rejection):
            return body
        cast("_Request", message).http_body.data = with_model(_data(message), model)
        return framed(message.SerializeToString())

    def usage(self, body: bytes, streaming: bool) -> Usage | None:
        """The last usage in the objects or events that the messages carry."""
        found = None
        for message in answers_in(body, http_bodies()[0]):
            data = cast("_HttpBody", message).data
            found = (from_events(data) if data.lstrip()[:5] == b"data:" else from_body(data)) or found
        return found


def _data(request: Message) -> bytes:
    return cast("_Request", request).http_body.data
