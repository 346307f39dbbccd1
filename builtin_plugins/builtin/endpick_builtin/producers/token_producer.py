"""`token-producer`: tokenizes prompts, estimated or by a vLLM renderer."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
from pydantic import Field, JsonValue, model_validator

from endpick.api import (
    CycleState,
    DataProducer,
    Duration,
    Endpoints,
    InferenceRequest,
    JSONObject,
    JSONValue,
    Modality,
    PluginContext,
    Unavailable,
)
from endpick.api.fast_metrics import Counts
from endpick.api.keys import TOKENIZED_PROMPT, MediaPlace, PromptTokens
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.producers.json_service import JsonService, problem_with_url
from endpick_builtin.producers.token_estimate import EstimateParameters, estimated, packed

COMPLETIONS = "/v1/completions/render"
CHAT = "/v1/chat/completions/render"
_LONGEST_IDENTIFIER = 1024  # hashed with every block of the media
_CHAT_FIELDS = (
    "messages",
    "tools",
    "documents",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
)


@dataclass(frozen=True, slots=True)
class Question:
    """A request to the renderer: its path and JSON body."""

    path: str
    body: JSONObject
    has_parts: bool = False


def has_tokens(request: InferenceRequest) -> bool:
    """Whether the client sent token ids."""
    payload = request.payload or {}
    prompt = payload.get("prompt", payload.get("input"))
    if not isinstance(prompt, list) or not prompt:
        return False
    return all(type(part) is int or (isinstance(part, list) and all(type(token) is int for token in part)) for part in prompt)


def question_of(request: InferenceRequest, model: str) -> Question | None:
    """Build the request to the renderer, or return None if the renderer has no API for it."""
    payload, path = request.payload, request.path.removesuffix("/render")
    if payload is None:
        return None
    if path.endswith("/chat/completions") and isinstance(payload.get("messages"), list):
        body = {"model": model, **{name: payload[name] for name in _CHAT_FIELDS if payload.get(name) is not None}}
        return Question(CHAT, body, _has_parts(payload["messages"]))
    if path.endswith("/completions") and payload.get("prompt"):
        return Question(COMPLETIONS, {"model": model, "prompt": payload["prompt"]})
    return None


def _has_parts(messages: JSONValue) -> bool:
    if not isinstance(messages, Sequence):
        return False
    return any(isinstance(message, Mapping) and isinstance(message.get("content"), list) for message in messages)


def prompts_in(answer: object) -> tuple[PromptTokens, ...]:
    """Parse objects with `token_ids` and optional `features`; raises Unavailable for anything else."""
    prompts = tuple(_prompt(rendered) for rendered in (answer if isinstance(answer, list) else [answer]))
    if not prompts or not all(len(prompt.token_ids) for prompt in prompts):
        raise Unavailable("the renderer answered without tokens")
    return prompts


def _prompt(rendered: object) -> PromptTokens:
    token_ids = rendered.get("token_ids") if isinstance(rendered, dict) else None
    if not isinstance(rendered, dict) or not isinstance(token_ids, list):
        raise Unavailable("the renderer's answer holds no list of token ids")
    try:
        # `array` takes a fifth of the time that numpy does.
        tokens = np.array(array("I", token_ids), dtype=np.uint32)
    except (OverflowError, TypeError) as problem:
        raise Unavailable(f"the renderer's answer holds an invalid token id: {problem}") from problem
    return PromptTokens(tokens, _places(rendered.get("features"), len(token_ids)))


def _places(features: object, tokens: int) -> tuple[MediaPlace, ...]:
    if not isinstance(features, dict):
        return ()
    try:
        hashes, placeholders = features["mm_hashes"], features["mm_placeholders"]
        places = [
            MediaPlace(modality, str(identifier), place["offset"], place["length"])
            for modality in Modality
            for identifier, place in zip(hashes.get(modality.value) or (), placeholders.get(modality.value) or (), strict=False)
        ]
        fitting = [place for place in places if 0 < place.length <= tokens - place.offset and len(place.identifier) <= _LONGEST_IDENTIFIER]
    except (AttributeError, KeyError, TypeError):
        return ()
    found: list[MediaPlace] = []
    end = 0
    for place in sorted(fitting, key=lambda place: place.offset):
        if place.offset >= end:
            found.append(place)
            end = place.offset + place.length
    return tuple(found)


DEFAULT_URL = "http://localhost:8000"
WARM_UP_TRIES = 24
WARM_UP_SECONDS = 5.0


class RenderParameters(CamelParameters):
    """A vLLM that renders prompts (`vllm launch render MODEL`)."""

    url: Annotated[str, Field(description=f"Base URL; paths such as {COMPLETIONS} are appended.")] = DEFAULT_URL
    http: Annotated[str, Field(description="Former name of `vllm.url`.", deprecated=True)] = ""
    timeout: Annotated[Duration, Field(gt=0, le=600, description="Timeout for text prompts.")] = 5.0
    mm_timeout: Annotated[Duration, Field(gt=0, le=600, description="Timeout for conversations whose content comes in parts.")] = 30.0

    @model_validator(mode="after")
    def _has_usable_url(self) -> Self:
        if self.model_fields_set >= {"url", "http"}:
            raise ValueError("http is the former name of url: give one of them")
        problem = problem_with_url(self.service_url)
        if problem is not None:
            raise ValueError(problem)
        return self

    @property
    def service_url(self) -> str:
        return self.__dict__["http"] or self.url


class TokenProducerParameters(CamelParameters):
    """Exactly one back end: `estimate`, the default, or `vllm` with `modelName`."""

    model_name: Annotated[str, Field(description="Model name of the renderer; required for `vllm`.")] = ""
    vllm: Annotated[RenderParameters | None, Field(description="Let a vLLM tokenize prompts.")] = None
    estimate: Annotated[EstimateParameters | None, Field(description="Count four bytes of text as one token.")] = None
    uds_tokenizer_config: Annotated[
        JsonValue, Field(description="Refused: the tokenizer behind a Unix socket that `vllm` has replaced.")
    ] = None

    @model_validator(mode="after")
    def _has_one_back_end(self) -> Self:
        if self.uds_tokenizer_config is not None:
            raise ValueError(
                "udsTokenizerConfig is not supported: run `vllm launch render` with the model, and give modelName and vllm: {url: …}"
            )
        if self.estimate is not None and (self.vllm is not None or self.model_name):
            raise ValueError("give one back end: estimate, or vllm with modelName")
        if self.vllm is not None and not self.model_name:
            raise ValueError("modelName must be specified: the renderer is asked for that model")
        return self


class TokenProducer(DataProducer[TokenProducerParameters]):
    """Provides each prompt of the request as token ids, with the positions of its media.

    Estimated: four bytes of text are one token, little-endian, zero-padded at the end and before media. Media are the low 32 bits of
    xxh64(link or content), repeated for each of their tokens: width * height / 1024 for images, frames * tokens per frame for videos,
    ceil(bytes / 4) for audio; at most 262,144 per request, at least one each.

    Rendered: a vLLM tokenizes chats and completions; other and unanswered requests have no tokens.

    Prompts sent as token ids stay as they are. Without a readable prompt there are no tokens.
    """

    produces = (TOKENIZED_PROMPT,)
    aliases = ("tokenizer",)

    def __init__(self, name: str, parameters: TokenProducerParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._estimate = parameters.estimate or EstimateParameters()
        text = "Requests by outcome: estimated, sent (as token ids), rendered, unsupported, failed."
        counts = Counts("endpick_token_producer_requests_total", text, ("outcome",), context.registry)
        self._estimated, self._sent, self._rendered, self._unsupported, self._failed = map(
            counts.labels, ("estimated", "sent", "rendered", "unsupported", "failed")
        )
        self._warming: asyncio.Task[None] | None = None
        self._service: JsonService | None = None
        if parameters.model_name:
            self._render = parameters.vllm or RenderParameters()
            self._service = JsonService(self._render.service_url)
            self.timeout_seconds = max(self._render.timeout, self._render.mm_timeout)
            # Estimates stay synchronous: awaiting costs a task per request.
            self.produce = self._produce_rendered  # type: ignore[method-assign, assignment]

    async def start(self) -> None:
        if self._service is not None:
            self._service.open()
            self._warming = asyncio.create_task(self._warm_up(self._service))

    async def stop(self) -> None:
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)
        if self._service is not None:
            await self._service.close()

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        tokens = estimated(request, self._estimate)
        if tokens:
            self._estimated.inc()
            state.put(TOKENIZED_PROMPT, tokens)

    async def _produce_rendered(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        service, question = self._service, question_of(request, self.parameters.model_name)
        if has_tokens(request):
            self._sent.inc()
            state.put(TOKENIZED_PROMPT, tuple(packed(text) for text in request.prompt.texts))
        elif question is None or service is None or not service.is_open:
            self._unsupported.inc()
        else:
            seconds = self._render.mm_timeout if question.has_parts else self._render.timeout
            try:
                tokens = prompts_in(await service.post(question.path, question.body, seconds, _authorization(request)))
            except Unavailable:
                self._failed.inc()
                raise
            self._rendered.inc()
            state.put(TOKENIZED_PROMPT, tokens)

    async def _warm_up(self, service: JsonService) -> None:
        question, problem = Question(COMPLETIONS, {"model": self.parameters.model_name, "prompt": "warm up"}), ""
        for _ in range(WARM_UP_TRIES):
            try:
                prompts_in(await service.post(question.path, question.body, WARM_UP_SECONDS))
            except Unavailable as unavailable:
                problem = str(unavailable)
                await asyncio.sleep(WARM_UP_SECONDS)
            else:
                self.context.logger.info("the renderer at %s answers", service.url)
                return
        self.context.logger.warning(
            "the renderer at %s has not answered in %d tries (%s): see vllm.url", service.url, WARM_UP_TRIES, problem
        )


def _authorization(request: InferenceRequest) -> dict[str, str]:
    value = request.headers.get("authorization", "")
    return {"authorization": value} if value.isascii() and value.isprintable() and value else {}
