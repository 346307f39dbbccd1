"""Parses requests, computes answers and formats responses of the OpenAI API."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated, Literal, TypeVar
from uuid import uuid4

import orjson
import xxhash
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from endpick_lab.engine import GenerationRequest, TokenUsage
from endpick_lab.kv_events import BlockContent
from endpick_lab.settings import ServerSettings

Kind = Literal["chat.completion", "text_completion"]
FinishReason = Literal["stop", "length"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class StreamOptions(_Model):
    """The field `stream_options` of a request."""

    include_usage: bool = False


class _Generation(_Model):
    model: str
    n: Literal[1] | None = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False
    kv_transfer_params: dict[str, JsonValue] | None = None

    @property
    def is_prefilled(self) -> bool:
        return (self.kv_transfer_params or {}).get("do_remote_prefill") is True

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(_Generation):
    """The body of POST /v1/chat/completions."""

    kind: Literal["chat.completion"] = "chat.completion"
    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    @property
    def token_limit(self) -> int | None:
        """The maximum number of output tokens; None without a limit."""
        return self.max_completion_tokens or self.max_tokens

    def render(self) -> bytes:
        """Return the prompt in whole tokens, a prefix of the chat's next prompt."""
        parts = [b"".join((_role_header(message.role), padded(_text_of(message)), _END)) for message in self.messages]
        return b"".join((*parts, _role_header("assistant")))


class CompletionRequest(_Generation):
    """The body of POST /v1/completions, with one prompt."""

    kind: Literal["text_completion"] = "text_completion"
    prompt: str | list[int] | Annotated[list[str], Field(min_length=1, max_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = 16

    @property
    def token_limit(self) -> int | None:
        """The maximum number of output tokens; None without a limit."""
        return self.max_tokens

    def render(self) -> bytes:
        """Return the prompt in whole tokens; token ids keep their number."""
        if isinstance(self.prompt, str):
            return padded(self.prompt)
        return b"".join(padded(part) if isinstance(part, str) else (part % 2**32).to_bytes(4, "little") for part in self.prompt)


class Message(_Model):
    """A message of a chat: text, or a list of content parts."""

    role: str
    content: str | list[dict[str, JsonValue]] | None = None


AnyRequest = ChatRequest | CompletionRequest
RequestT = TypeVar("RequestT", ChatRequest, CompletionRequest)


def parse_request(request_type: type[RequestT], body: bytes) -> RequestT:
    """Parse a request body. Raises ApiError 400 with the first invalid field."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"The request body is not JSON: {error}.") from error
    try:
        return request_type.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or None
        raise bad_request(f"{where or 'The request body'}: {first['msg']}.", where) from error


NATURAL_LENGTHS = range(16, 129)  # tokens of an answer without a limit; the prompt determines the length


@dataclass(frozen=True, slots=True)
class Job:
    """An accepted request with its answer."""

    generation: GenerationRequest
    content: bytes  # prompt and answer, four bytes per token
    answer: str
    finish_reason: FinishReason


def plan_job(request: AnyRequest, settings: ServerSettings) -> Job:
    """Accept a request. Raises ApiError: 404 for an unknown model, 400 for an empty or too long prompt."""
    if request.model != settings.model and request.model not in settings.adapters:
        raise ApiError(404, "NotFoundError", f"The model `{request.model}` does not exist.", "model")
    prompt = request.render()
    prompt_tokens = count_tokens(prompt)
    limit = _answer_limit(request, prompt_tokens, settings.engine.max_model_len)
    seed = xxhash.xxh3_64_intdigest(prompt, settings.seed)
    natural = max(NATURAL_LENGTHS[seed % len(NATURAL_LENGTHS)], request.min_tokens)
    length = limit if request.ignore_eos else min(natural, limit)
    answer = answer_text(seed, length)
    content = prompt + answer.encode()
    hashes = chained_hashes(content, settings.engine.block_size, salt=request.model)
    adapter = request.model if request.model != settings.model else None
    return Job(
        generation=GenerationRequest(uuid4().hex, prompt_tokens, length, hashes, adapter, prompt_tokens if request.is_prefilled else 0),
        content=content,
        answer=answer,
        finish_reason="length" if request.ignore_eos or natural > limit else "stop",
    )


def _answer_limit(request: AnyRequest, prompt_tokens: int, max_model_len: int) -> int:
    if not prompt_tokens:
        raise bad_request("The prompt is empty.", "prompt")
    room = max_model_len - prompt_tokens
    wanted = request.token_limit or 1
    if room < wanted:
        prompt_field = "messages" if request.kind == "chat.completion" else "prompt"
        raise bad_request(
            f"This model takes at most {max_model_len} tokens, but the prompt has {prompt_tokens} and up to {wanted} more were asked for.",
            "max_tokens" if room > 0 else prompt_field,
        )
    return request.token_limit or room


class ResponseFormat:
    """Formats the answer to one request, as a whole or as a stream of events."""

    def __init__(self, kind: Kind, request_id: str, model: str) -> None:
        self._chat = kind == "chat.completion"
        self._frame = {"id": f"{'chatcmpl' if self._chat else 'cmpl'}-{request_id}", "created": int(time.time()), "model": model}
        self._object = kind

    def whole(self, text: str, finish_reason: FinishReason, usage: TokenUsage, transfer: dict[str, object] | None = None) -> bytes:
        """Return the answer as one JSON body; `transfer` locates its KV blocks for another engine."""
        content: dict[str, object] = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        choices = [self._choice(content, finish_reason)]
        offered = {} if transfer is None else {"kv_transfer_params": transfer}
        return orjson.dumps({**self._frame, "object": self._object, "choices": choices, "usage": usage_body(usage), **offered})

    def opening(self) -> bytes:
        """Return the first event of a chat; empty for completions."""
        return self._event([self._choice({"delta": {"role": "assistant", "content": ""}}, None)]) if self._chat else b""

    def token(self, text: str, finish_reason: FinishReason | None) -> bytes:
        """Return the event of one token; only the last has a finish reason."""
        return self._event([self._choice({"delta": {"content": text}} if self._chat else {"text": text}, finish_reason)])

    def closing(self, usage: TokenUsage | None) -> bytes:
        """Return the optional usage event, and the end marker."""
        return (self._event([], usage) if usage else b"") + b"data: [DONE]\n\n"

    def _choice(self, content: dict[str, object], finish_reason: FinishReason | None) -> dict[str, object]:
        return {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}

    def _event(self, choices: Sequence[dict[str, object]], usage: TokenUsage | None = None) -> bytes:
        body: dict[str, object] = {**self._frame, "object": f"{self._object}.chunk" if self._chat else self._object, "choices": choices}
        if usage:
            body["usage"] = usage_body(usage)
        return b"data: " + orjson.dumps(body) + b"\n\n"


def usage_body(usage: TokenUsage) -> dict[str, object]:
    """Build the object `usage` of a response."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


class ApiError(Exception):
    """A refused request, with the fields of an OpenAI error."""

    def __init__(self, status: int, type_: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.type = type_
        self.param = param

    def body(self) -> bytes:
        """Return the body `{"error": {message, type, param, code}}`, as in vLLM."""
        return orjson.dumps({"error": {"message": str(self), "type": self.type, "param": self.param, "code": self.status}})


def bad_request(message: str, param: str | None = None) -> ApiError:
    """Build an error with status 400."""
    return ApiError(400, "BadRequestError", message, param)


BYTES_PER_TOKEN = 4


def padded(text: str) -> bytes:
    """Encode a text, padded to whole tokens."""
    encoded = text.encode()
    return encoded + b" " * (-len(encoded) % BYTES_PER_TOKEN)


_END = padded("<|end|>\n")


def _role_header(role: str) -> bytes:
    return padded(f"<|{role}|>\n")


def _text_of(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join(_text_of_part(part) for part in message.content or [])


def _text_of_part(part: dict[str, JsonValue]) -> str:
    text = part.get("text")
    return text if isinstance(text, str) else orjson.dumps(part).decode()


def count_tokens(content: bytes) -> int:
    """Return the number of tokens in padded bytes."""
    return len(content) // BYTES_PER_TOKEN


# three letters and a space are one token
_WORDS = ("the", "sun", "and", "sea", "are", "old", "but", "one", "can", "see", "how", "few", "men", "get")


def answer_text(seed: int, tokens: int) -> str:
    """Return an answer of `tokens` tokens, determined by `seed`."""
    return " ".join(Random(seed).choices(_WORDS, k=tokens)) + " " if tokens else ""  # noqa: S311 - repeatable by design


def split_tokens(text: str) -> list[str]:
    """Split an `answer_text` into its tokens."""
    return [text[start : start + BYTES_PER_TOKEN] for start in range(0, len(text), BYTES_PER_TOKEN)]


def chained_hashes(content: bytes, block_size: int, salt: str = "") -> tuple[int, ...]:
    """Hash each full block together with all before it; `salt` separates adapters."""
    width = block_size * BYTES_PER_TOKEN
    blocks = (content[start : start + width] for start in range(0, len(content) - width + 1, width))
    return tuple(_chain(blocks, xxhash.xxh3_64_intdigest(salt.encode())))


def block_contents(job: Job, block_size: int) -> list[BlockContent]:
    """Return the content of each hashed block of a job."""
    width, hashes = block_size * BYTES_PER_TOKEN, job.generation.block_hashes
    parents = (None, *hashes)
    tokens = [struct.unpack(f"<{block_size}I", job.content[number * width : (number + 1) * width]) for number in range(len(hashes))]
    return [BlockContent(parent, own, job.generation.adapter) for parent, own in zip(parents, tokens, strict=False)]


def _chain(blocks: Iterable[bytes], parent: int) -> Iterator[int]:
    for block in blocks:
        parent = xxhash.xxh3_64_intdigest(block, parent)
        yield parent
