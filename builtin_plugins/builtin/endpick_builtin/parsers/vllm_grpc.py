"""`vllmgrpc-parser`: vLLM's gRPC API."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import islice
from typing import Protocol, cast

from google.protobuf.message import DecodeError, Message

from endpick.api import Media, Modality, ParsedRequest, Parser, Prompt, Rejection, Usage
from endpick_builtin.parsers.grpc_bodies import answers_in, messages_of, request_in
from endpick_builtin.parsers.token_prompts import MAX_MEDIA, PlacedMedia, token_prompt, without_overlaps

GENERATE, EMBED = "/vllm.grpc.engine.VllmEngine/Generate", "/vllm.grpc.engine.VllmEngine/Embed"


MAX_TOKENS = 1 << 20


class _Tokenized(Protocol):
    input_ids: Sequence[int]


class _Place(Protocol):
    offset: int
    length: int


class _Media(Protocol):
    mm_placeholders: Sequence[bytes]
    mm_hashes: Sequence[bytes]


class _Sampling(Protocol):
    max_tokens: int


class _Request(Protocol):
    """The fields of both requests that are used."""

    tokenized: _Tokenized
    text: str
    sampling_params: _Sampling
    stream: bool
    mm_inputs: _Media


class _Counts(Protocol):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class _Answer(Protocol):
    chunk: _Counts
    complete: _Counts


@cache
def _messages() -> dict[str, type[Message]]:
    """Messages with the fields in use."""
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
    the output, and token counts come from the response chunks. `mm_hashes` and `mm_placeholders` locate media; all count as images, because
    the API has no modality.
    """

    claims = (GENERATE, EMBED)
    reads_usage = True

    def parse(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest | Rejection:
        """See the class."""
        embeds = path.endswith(EMBED)
        message = request_in(body, _messages()["EmbedRequest" if embeds else "GenerateRequest"])
        if isinstance(message, Rejection):
            return message
        request = cast("_Request", message)
        if len(request.tokenized.input_ids) > MAX_TOKENS:
            return Rejection(f"the request has more than {MAX_TOKENS} token ids", status=413)
        tokens = array("I", request.tokenized.input_ids)  # a copy: the request keeps its prompt, and not the protobuf message
        if embeds:
            if not tokens:
                return Rejection("invalid embed request: must have tokenized input", status=400)
            return ParsedRequest(prompt=token_prompt(tokens), needs_model=False)
        if not tokens and not request.text:
            return Rejection("invalid generate request: must have text or tokenized input", status=400)
        prompt = _token_prompt(tokens, request.mm_inputs) if tokens else _text_prompt(request.text)
        limit = request.sampling_params.max_tokens or None
        return ParsedRequest(prompt=prompt, streaming=request.stream, max_output_tokens=limit, needs_model=False)

    def usage(self, body: bytes, streaming: bool) -> Usage | None:
        """See `Parser.usage`."""
        # The second field of an Embed response is a number, of a Generate response a message, so this cannot be mistaken.
        found = _embedded(body)
        if found is not None:
            return found
        for message in answers_in(body, _messages()["GenerateResponse"]):
            answer = cast("_Answer", message)
            counts = answer.complete if message.HasField("complete") else answer.chunk
            if counts.prompt_tokens or counts.completion_tokens:
                found = Usage(counts.prompt_tokens, counts.completion_tokens, counts.cached_tokens)
        return found


def _token_prompt(tokens: array[int], inputs: _Media) -> Prompt:
    media = _media_of(inputs, len(tokens))
    return token_prompt(tokens, (lambda: media) if media else None)


def _text_prompt(text: str) -> Prompt:
    return Prompt(lambda: (text.encode(),))


def _media_of(inputs: _Media, tokens: int) -> list[PlacedMedia]:
    found: list[PlacedMedia] = []
    for name, encoded in islice(zip(inputs.mm_hashes, inputs.mm_placeholders, strict=False), MAX_MEDIA):
        with suppress(DecodeError):
            place = cast("_Place", _messages()["PlaceholderRange"].FromString(encoded))
            found.append(PlacedMedia(Media(Modality.IMAGE, name.decode("utf-8", "replace")), place.offset, place.length))
    return without_overlaps(found, tokens)


def _embedded(body: bytes) -> Usage | None:
    for message in answers_in(body, _messages()["EmbedResponse"]):
        count = cast("_Counts", message).prompt_tokens
        if count:
            return Usage(count, 0)
    return None
