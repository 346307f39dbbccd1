"""`vertexai-parser`: OpenAI requests in the gRPC messages of Vertex AI's prediction service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

from google.protobuf.message import Message

from endpick.api import JSONObject, ParsedRequest, Rejection, Usage
from endpick_builtin.parsers.grpc_bodies import answers_in, framed, http_bodies, request_in
from endpick_builtin.parsers.json_bodies import dumped
from endpick_builtin.parsers.openai import OpenAIParser
from endpick_builtin.parsers.openai_usage import from_body, from_events

CHAT, COMPLETIONS = "/chat/completions", "/completions"


class _HttpBody(Protocol):
    data: bytes


class _Request(Protocol):
    http_body: _HttpBody


class VertexAIParser(OpenAIParser):
    """Reads OpenAI requests inside a `google.api.HttpBody` of the prediction service, and token counts from the responses.

    `ChatCompletions` carries chat; `RawPredict` and `StreamRawPredict` carry chat if the object has `messages`, else a completion.
    Compressed or truncated frames get 400.
    """

    claims = (".PredictionService/ChatCompletions", ".PredictionService/StreamRawPredict", ".PredictionService/RawPredict")

    def parse(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest | Rejection:
        """See the class."""
        message = request_in(body, http_bodies()[1])
        return message if isinstance(message, Rejection) else super().parse(path, headers, _data(message))

    def parsed(self, path: str, payload: JSONObject) -> ParsedRequest | Rejection:
        """See the class."""
        return super().parsed(CHAT if path.endswith("/ChatCompletions") or "messages" in payload else COMPLETIONS, payload)

    def rewrite_model(self, body: bytes, parsed: ParsedRequest, model: str) -> bytes:
        """Change the model in the object; other fields of the message stay."""
        message = request_in(body, http_bodies()[1])
        if isinstance(message, Rejection) or parsed.payload is None:
            return body
        cast("_Request", message).http_body.data = dumped({**parsed.payload, "model": model})
        return framed(message.SerializeToString())

    def usage(self, body: bytes, streaming: bool) -> Usage | None:
        """See `Parser.usage`."""
        found = None
        for message in answers_in(body, http_bodies()[0]):
            data = cast("_HttpBody", message).data
            found = (from_events(data) if data.lstrip()[:5] == b"data:" else from_body(data)) or found
        return found


def _data(request: Message) -> bytes:
    return cast("_Request", request).http_body.data
