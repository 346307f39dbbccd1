"""The part of the OpenAI API that the simulator speaks: request bodies in, response bodies and error bodies out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from endpick.simulation.generation import Usage
from endpick.simulation.tokens import padded

Kind = Literal["chat.completion", "text_completion"]
FinishReason = Literal["stop", "length"]


class ApiError(Exception):
    """The request cannot be served; becomes an OpenAI error body with `status`."""

    def __init__(self, status: int, type_: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.type = type_
        self.param = param

    def body(self) -> bytes:
        """`{"error": {message, type, param, code}}`, as clients of vLLM expect it."""
        return orjson.dumps({"error": {"message": str(self), "type": self.type, "param": self.param, "code": self.status}})


def bad_request(message: str, param: str | None = None) -> ApiError:
    """A 400: what the client sent is at fault."""
    return ApiError(400, "BadRequestError", message, param)


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class StreamOptions(_Model):
    """Options of a streamed answer."""

    include_usage: bool = False


class _Generation(_Model):
    model: str
    n: Literal[1] | None = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    min_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class Message(_Model):
    """One message of a chat."""

    role: str
    content: str | list[dict[str, JsonValue]] | None = None


class ChatRequest(_Generation):
    """Body of POST /v1/chat/completions."""

    kind: Literal["chat.completion"] = "chat.completion"
    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None

    @property
    def token_limit(self) -> int | None:
        """Most tokens the client wants; None for no limit of its own."""
        return self.max_completion_tokens or self.max_tokens

    def render(self) -> bytes:
        """The prompt, in whole tokens; the next turn's prompt begins with this one and the answer to it."""
        parts = [b"".join((_role_header(message.role), padded(_text_of(message)), _END)) for message in self.messages]
        return b"".join((*parts, _role_header("assistant")))


class CompletionRequest(_Generation):
    """Body of POST /v1/completions; one prompt per request."""

    kind: Literal["text_completion"] = "text_completion"
    prompt: str | list[int] | Annotated[list[str], Field(min_length=1, max_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = 16

    @property
    def token_limit(self) -> int | None:
        """Most tokens the client wants; None for no limit of its own."""
        return self.max_tokens

    def render(self) -> bytes:
        """The prompt, in whole tokens; token ids keep their number."""
        if isinstance(self.prompt, str):
            return padded(self.prompt)
        return b"".join(padded(part) if isinstance(part, str) else (part % 2**32).to_bytes(4, "little") for part in self.prompt)


AnyRequest = ChatRequest | CompletionRequest
RequestT = TypeVar("RequestT", ChatRequest, CompletionRequest)

_END = padded("<|end|>\n")


def _role_header(role: str) -> bytes:
    return padded(f"<|{role}|>\n")


def _text_of(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    return "".join(_text_of_part(part) for part in message.content or [])


def _text_of_part(part: dict[str, JsonValue]) -> str:
    """A part that is not text, such as an image, is as long as its JSON."""
    text = part.get("text")
    return text if isinstance(text, str) else orjson.dumps(part).decode()


def parse_request(request_type: type[RequestT], body: bytes) -> RequestT:
    """Read a request body.

    Raises:
        ApiError: 400, naming the first field at fault.
    """
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


class ResponseFormat:
    """Builds the bodies of one answer; all of them carry the same id, model and creation time."""

    def __init__(self, kind: Kind, request_id: str, model: str) -> None:
        self._chat = kind == "chat.completion"
        self._frame = {"id": f"{'chatcmpl' if self._chat else 'cmpl'}-{request_id}", "created": int(time.time()), "model": model}
        self._object = kind

    def whole(self, text: str, finish_reason: FinishReason, usage: Usage) -> bytes:
        """The answer as one JSON body."""
        content = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        choices = [{"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}]
        return orjson.dumps({**self._frame, "object": self._object, "choices": choices, "usage": usage_body(usage)})

    def opening(self) -> bytes:
        """The event that opens a streamed chat answer, before its first token; a plain completion has none."""
        return self._event([self._choice({"delta": {"role": "assistant", "content": ""}}, None)]) if self._chat else b""

    def token(self, text: str, finish_reason: FinishReason | None) -> bytes:
        """The event of one token; only the last carries a finish reason."""
        return self._event([self._choice({"delta": {"content": text}} if self._chat else {"text": text}, finish_reason)])

    def closing(self, usage: Usage | None) -> bytes:
        """The usage event, where the client asked for it, and the end marker."""
        return (self._event([], usage) if usage else b"") + b"data: [DONE]\n\n"

    def _choice(self, content: dict[str, object], finish_reason: FinishReason | None) -> dict[str, object]:
        return {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}

    def _event(self, choices: Sequence[dict[str, object]], usage: Usage | None = None) -> bytes:
        body: dict[str, object] = {**self._frame, "object": f"{self._object}.chunk" if self._chat else self._object, "choices": choices}
        if usage:
            body["usage"] = usage_body(usage)
        return b"data: " + orjson.dumps(body) + b"\n\n"


def usage_body(usage: Usage) -> dict[str, object]:
    """The `usage` object, with the prompt tokens that came from the prefix cache."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
