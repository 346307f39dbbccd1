"""`vllmgrpc-parser` and `vertexai-parser`."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import Any, TypeVar

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from endpick.api import JSONObject, Media, Modality, ParsedRequest, Parser, Prompt, Rejection, Usage
from endpick_builtin.parsers.json_bodies import dumped
from endpick_builtin.parsers.openai import OpenAIParser
from endpick_builtin.parsers.openai_bodies import filled, from_body, from_events
from endpick_builtin.parsers.token_ids import MAX_MEDIA, PlacedMedia, token_prompt, without_overlaps

HEAD_BYTES = 5  # compressed flag and length
MAX_BODY_BYTES = 16 * 1024 * 1024  # small fields grow a hundredfold when parsed

Declared = Mapping[str, Mapping[str, tuple[int, str]]]  # number and type of fields by message; `*` for a list

_TYPES = {
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "string": FieldDescriptorProto.TYPE_STRING,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "bool": FieldDescriptorProto.TYPE_BOOL,
}


def messages_of(package: str, declared: Declared) -> dict[str, type[Message]]:
    """Build message classes from declared fields; parsing skips all others."""
    file = FileDescriptorProto(name=f"endpick/{package}.proto", package=package, syntax="proto3")
    for name, fields in declared.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            bare = kind.removesuffix("*")
            label = FieldDescriptorProto.LABEL_REPEATED if kind.endswith("*") else FieldDescriptorProto.LABEL_OPTIONAL
            descriptor = message.field.add(name=field, number=number, label=label)
            if bare in _TYPES:
                descriptor.type = _TYPES[bare]
            else:
                descriptor.type, descriptor.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{package}.{bare}"
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in declared}


Read = TypeVar("Read", bound=Message)


def request_in(body: bytes, kind: type[Read]) -> Read | Rejection:
    """Decode a request; returns a Rejection if it is too large, compressed, truncated or invalid."""
    if len(body) > MAX_BODY_BYTES:
        return Rejection(f"the gRPC request body is larger than {MAX_BODY_BYTES} bytes", status=413)
    problem = _problem_with(body)
    if problem is not None:
        return Rejection(f"invalid or unsupported gRPC payload: {problem}", status=400)
    try:
        return kind.FromString(body[HEAD_BYTES : HEAD_BYTES + _length_of(body)])
    except DecodeError as failure:
        return Rejection(f"invalid or unsupported gRPC payload: {failure}", status=400)


def _problem_with(body: bytes) -> str | None:
    if len(body) < HEAD_BYTES:
        return f"invalid gRPC frame: expected at least {HEAD_BYTES} bytes for header, got {len(body)}"
    if body[0]:
        return "compressed gRPC payload is not supported"
    length, there = _length_of(body), len(body) - HEAD_BYTES
    if length > there:
        return f"incomplete gRPC payload: header indicates {length} bytes, but only {there} bytes are available"
    return None


def _length_of(frame: bytes) -> int:
    return int.from_bytes(frame[1:HEAD_BYTES], "big")


def answers_in(frames: bytes, kind: type[Read]) -> Iterator[Read]:
    """Yield the readable messages of a response, skipping compressed and invalid ones."""
    start = 0
    while start + HEAD_BYTES <= len(frames):
        begin = start + HEAD_BYTES
        end = begin + _length_of(frames[start:begin])
        if not frames[start] and end <= len(frames):
            with suppress(DecodeError):
                yield kind.FromString(frames[begin:end])
        start = end


def framed(message: bytes) -> bytes:
    """Put a message into a frame, uncompressed."""
    return b"\0" + len(message).to_bytes(HEAD_BYTES - 1, "big") + message


@cache
def http_bodies() -> tuple[type[Message], type[Message]]:
    """Return the classes of `google.api.HttpBody`, and of a request with one as field 2."""
    made = messages_of(
        "google.api",
        {"HttpBody": {"content_type": (1, "string"), "data": (2, "bytes")}, "Request": {"http_body": (2, "HttpBody")}},
    )
    return made["HttpBody"], made["Request"]


CHAT, COMPLETIONS = "/chat/completions", "/completions"


class VertexAIParser(OpenAIParser):
    """Reads OpenAI requests inside a `google.api.HttpBody` of the prediction service, and token counts from the responses.

    `ChatCompletions` carries chat; `RawPredict` and `StreamRawPredict` carry chat if there are `messages`, else a completion. Compressed or
    truncated frames get 400.
    """

    claims = (".PredictionService/ChatCompletions", ".PredictionService/StreamRawPredict", ".PredictionService/RawPredict")

    def parse(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest | Rejection:
        message: Any = request_in(body, http_bodies()[1])
        return message if isinstance(message, Rejection) else super().parse(path, headers, message.http_body.data)

    def parsed(self, path: str, payload: JSONObject) -> ParsedRequest | Rejection:
        return super().parsed(CHAT if path.endswith("/ChatCompletions") or "messages" in payload else COMPLETIONS, payload)

    def rewrite_model(self, body: bytes, parsed: ParsedRequest, model: str) -> bytes:
        message: Any = request_in(body, http_bodies()[1])
        if isinstance(message, Rejection) or parsed.payload is None:
            return body
        message.http_body.data = dumped({**parsed.payload, "model": model})
        return framed(message.SerializeToString())

    def usage(self, body: bytes, streaming: bool) -> Usage | None:
        found = None
        message: Any
        for message in answers_in(body, http_bodies()[0]):
            data = message.data
            found = filled(from_events(data) if data.lstrip()[:5] == b"data:" else from_body(data), found)
        return found


GENERATE, EMBED = "/vllm.grpc.engine.VllmEngine/Generate", "/vllm.grpc.engine.VllmEngine/Embed"


MAX_TOKENS = 1 << 20


@cache
def _messages() -> dict[str, type[Message]]:
    return messages_of(
        "vllm.grpc.engine",
        {
            "TokenizedInput": {"input_ids": (2, "uint32*")},
            "PlaceholderRange": {"offset": (1, "uint32"), "length": (2, "uint32")},
            "MultimodalInputs": {"mm_placeholders": (5, "bytes*"), "mm_hashes": (6, "bytes*")},
            "SamplingParams": {"max_tokens": (8, "uint32")},
            "GenerateRequest": {
                "tokenized": (2, "TokenizedInput"),
                "text": (3, "string"),
                "sampling_params": (4, "SamplingParams"),
                "stream": (5, "bool"),
                "mm_inputs": (7, "MultimodalInputs"),
            },
            "EmbedRequest": {"tokenized": (2, "TokenizedInput")},
            "GenerateStreamChunk": {"prompt_tokens": (2, "uint32"), "completion_tokens": (3, "uint32"), "cached_tokens": (4, "uint32")},
            "GenerateComplete": {"prompt_tokens": (3, "uint32"), "completion_tokens": (4, "uint32"), "cached_tokens": (5, "uint32")},
            "GenerateResponse": {"chunk": (1, "GenerateStreamChunk"), "complete": (2, "GenerateComplete")},
            "EmbedResponse": {"prompt_tokens": (2, "uint32")},
        },
    )


class VllmGRPCParser(Parser):
    """Reads vLLM's gRPC API: `VllmEngine/Generate` with text or token ids, `VllmEngine/Embed` with token ids.

    The API has no model field. Compressed or truncated frames, and requests without a prompt, get 400. `sampling_params.max_tokens` limits
    the output; response chunks have token counts. `mm_hashes` and `mm_placeholders` locate media, all images for lack of a modality.
    """

    claims = (GENERATE, EMBED)
    reads_usage = True

    def parse(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest | Rejection:
        embeds = path.endswith(EMBED)
        request: Any = request_in(body, _messages()["EmbedRequest" if embeds else "GenerateRequest"])
        if isinstance(request, Rejection):
            return request
        if len(request.tokenized.input_ids) > MAX_TOKENS:
            return Rejection(f"the request has more than {MAX_TOKENS} token ids", status=413)
        tokens = array("I", request.tokenized.input_ids)  # a copy frees the protobuf message
        if embeds:
            if not tokens:
                return Rejection("invalid embed request: must have tokenized input", status=400)
            return ParsedRequest(prompt=token_prompt(tokens), needs_model=False)
        if not tokens and not request.text:
            return Rejection("invalid generate request: must have text or tokenized input", status=400)
        media, text = _media_of(request.mm_inputs.mm_hashes, request.mm_inputs.mm_placeholders, len(tokens)), request.text
        prompt = token_prompt(tokens, (lambda: media) if media else None) if tokens else Prompt(lambda: (text.encode(),))
        limit = request.sampling_params.max_tokens or None
        return ParsedRequest(prompt=prompt, streaming=request.stream, max_output_tokens=limit, needs_model=False)

    def usage(self, body: bytes, streaming: bool) -> Usage | None:
        # Field 2 is a number in Embed responses, a message in Generate responses.
        found = _embedded(body)
        if found is not None:
            return found
        answer: Any
        for answer in answers_in(body, _messages()["GenerateResponse"]):
            counts = answer.complete if answer.HasField("complete") else answer.chunk
            if counts.prompt_tokens or counts.completion_tokens:
                found = Usage(counts.prompt_tokens, counts.completion_tokens, counts.cached_tokens)
        return found


def _media_of(hashes: Iterable[bytes], places: Iterable[bytes], tokens: int) -> list[PlacedMedia]:
    found: list[PlacedMedia] = []
    for name, encoded in islice(zip(hashes, places, strict=False), MAX_MEDIA):
        with suppress(DecodeError):
            place: Any = _messages()["PlaceholderRange"].FromString(encoded)
            found.append(PlacedMedia(Media(Modality.IMAGE, name.decode("utf-8", "replace")), place.offset, place.length))
    return without_overlaps(found, tokens)


def _embedded(body: bytes) -> Usage | None:
    answer: Any
    for answer in answers_in(body, _messages()["EmbedResponse"]):
        if answer.prompt_tokens:
            return Usage(answer.prompt_tokens, 0)
    return None
