"""`token-producer`: leaves the prompt's tokens for all who count, hash or measure them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Self

from pydantic import Field, JsonValue, model_validator

from endpick.api import (
    TOKENIZED_PROMPT,
    CycleState,
    DataProducer,
    Duration,
    Endpoints,
    InferenceRequest,
    Limit,
    Limits,
    Parameters,
    PluginContext,
    Unavailable,
)
from endpick.api.fast_metrics import Counts
from endpick_builtin.collection.page_limits import ANSWER_BYTES, MAX_PAGE_BYTES, PAGE_LIMITS, service_size
from endpick_builtin.producers.json_service import JsonService, problem_with_url
from endpick_builtin.producers.media_tokens import MANY_MEDIA_TOKENS, EstimateParameters
from endpick_builtin.producers.render import COMPLETIONS, Question, has_tokens, prompts_in, question_of, was_parsed_elsewhere
from endpick_builtin.producers.token_estimate import estimated, packed

DEFAULT_URL = "http://localhost:8000"
WARM_UP_TRIES = 24
WARM_UP_SECONDS = 5.0
_TIMEOUT = Limit("timeout", "a prompt has no tokens: the renderer took longer than vllm.timeout; raise it, or see what keeps the renderer")
_MM_TIMEOUT = Limit(
    "mmTimeout", "a conversation has no tokens: the renderer took longer than vllm.mmTimeout; raise it, or see what keeps the renderer"
)
_TOO_LARGE = Limit(
    "--large-body",
    "a body has no rendered tokens: it is beyond --large-body, and parsed in another process; raise --large-body to have it rendered",
)


class RenderParameters(Parameters):
    """Where a vLLM renders prompts (`vllm launch render MODEL`)."""

    url: Annotated[str, Field(description=f"Where it is; paths such as {COMPLETIONS} are appended.")] = DEFAULT_URL
    http: Annotated[str, Field(description="The former name of `vllm.url`.", deprecated=True)] = ""
    timeout: Annotated[Duration, Field(gt=0, le=600, description="Longest wait for a prompt that is text alone.")] = 5.0
    mm_timeout: Annotated[
        Duration, Field(alias="mmTimeout", gt=0, le=600, description="Longest wait for a conversation whose content comes in parts.")
    ] = 30.0
    max_answer_bytes: ANSWER_BYTES = MAX_PAGE_BYTES

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        if self.model_fields_set >= {"url", "http"}:
            raise ValueError("http is the former name of url: give one of them")
        problem = problem_with_url(self.service_url)
        if problem is not None:
            raise ValueError(problem)
        return self

    @property
    def service_url(self) -> str:
        """Under either name."""
        return self.__dict__["http"] or self.url


class TokenProducerParameters(Parameters):
    """Exactly one back end: `estimate`, which is the default, or `vllm` with `modelName`."""

    model_name: Annotated[str, Field(alias="modelName", description="What the renderer calls the model; needed for `vllm`.")] = ""
    vllm: Annotated[RenderParameters | None, Field(description="Ask a vLLM for the tokens.")] = None
    estimate: Annotated[EstimateParameters | None, Field(description="Take four bytes of text for a token.")] = None
    uds_tokenizer_config: Annotated[
        JsonValue, Field(alias="udsTokenizerConfig", description="Refused: the tokenizer behind a Unix socket that `vllm` has replaced.")
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
    """Leave each prompt of the request as token ids, with the places of its media.

    Estimated: four bytes of text are a token, read as a little-endian number, the last one filled up with zeros. In front of media the
    text is filled up likewise; then the low 32 bits of xxh64(link or content) stand once for each of their tokens: width * height / 1024
    of a picture, frames * tokens of a frame of a film, ceil(bytes / 4) of a sound (see the parameters). All media of a request together
    get `estimate.maxMediaTokens` at most, and at least one each.

    Rendered: a vLLM is asked for the tokens of chats and completions. Other requests have none then, and neither have those whose body is
    larger than `--large-body`: another process parses it, and its messages stay there. They are counted as `too_large`, and the log says
    so. A renderer that does not answer, or answers nonsense, is a fault: the request goes on without
    tokens, and while the circuit of the instance is open no request waits for it.

    Prompts that come as token ids are passed on as they are. A request without a prompt that can be read has no tokens.
    """

    produces = (TOKENIZED_PROMPT,)
    aliases = ("tokenizer",)

    def __init__(self, name: str, parameters: TokenProducerParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._estimate = parameters.estimate or EstimateParameters()
        told = "Requests by what became of their tokens: estimated, sent (as token ids), rendered, unsupported, too_large, failed."
        counts = Counts("endpick_token_producer_requests_total", told, ("outcome",), context.registry)
        self._estimated, self._sent = counts.labels("estimated"), counts.labels("sent")
        self._rendered, self._unsupported, self._failed = map(counts.labels, ("rendered", "unsupported", "failed"))
        self._too_large = counts.labels("too_large")
        self._limits = Limits(context, (_TIMEOUT, _MM_TIMEOUT, _TOO_LARGE, MANY_MEDIA_TOKENS, *PAGE_LIMITS))
        self._warming: asyncio.Task[None] | None = None
        self._service: JsonService | None = None
        if parameters.model_name:
            self._render = parameters.vllm or RenderParameters()
            self._service = JsonService(self._render.service_url, self._limits, service_size(self._render.max_answer_bytes))
            self.timeout_seconds = max(self._render.timeout, self._render.mm_timeout)
            # Awaiting costs a task for each request, which those that estimate need not pay.
            self.produce = self._produce_rendered  # type: ignore[method-assign, assignment]

    async def start(self) -> None:
        """Open the connections; the renderer may still be loading its model, so it is asked until it answers."""
        if self._service is not None:
            self._service.open()
            self._warming = asyncio.create_task(self._warm_up(self._service))

    async def stop(self) -> None:
        """Close the connections."""
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)
        if self._service is not None:
            await self._service.close()

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        """Estimate."""
        tokens = estimated(request, self._estimate, self._shortened)
        if tokens:
            self._estimated.inc()
            state.put(TOKENIZED_PROMPT, tokens)

    def _shortened(self) -> None:
        self._limits.acted(MANY_MEDIA_TOKENS)

    async def _produce_rendered(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        """Ask the renderer.

        Raises:
            Unavailable: it does not answer as a renderer does.
        """
        service = self._service
        if has_tokens(request):
            self._sent.inc()
            state.put(TOKENIZED_PROMPT, tuple(packed(text) for text in request.prompt.texts))
            return
        if was_parsed_elsewhere(request):
            self._too_large.inc()
            self._limits.acted(_TOO_LARGE, about=f"request {request.id}, {request.size_bytes} bytes")
            return
        question = question_of(request, self.parameters.model_name)
        if question is None or service is None or not service.is_open:
            self._unsupported.inc()
            return
        seconds, limit = (self._render.mm_timeout, _MM_TIMEOUT) if question.structured else (self._render.timeout, _TIMEOUT)
        try:
            async with asyncio.timeout(seconds):
                tokens = prompts_in(await service.ask(question.path, question.body, _authorization(request)))
        except TimeoutError as problem:
            self._failed.inc()
            self._limits.acted(limit, about=service.url)
            raise Unavailable(f"POST {service.url}{question.path}: no answer within {seconds:g} s") from problem
        except Unavailable:
            self._failed.inc()
            raise
        self._rendered.inc()
        state.put(TOKENIZED_PROMPT, tokens)

    async def _warm_up(self, service: JsonService) -> None:
        question, problem = Question(COMPLETIONS, {"model": self.parameters.model_name, "prompt": "warm up"}), ""
        for _ in range(WARM_UP_TRIES):
            try:
                async with asyncio.timeout(WARM_UP_SECONDS):
                    prompts_in(await service.ask(question.path, question.body))
            except (Unavailable, TimeoutError) as unavailable:
                problem = str(unavailable) or f"no answer within {WARM_UP_SECONDS:g} s"
                await asyncio.sleep(WARM_UP_SECONDS)
            else:
                self.context.logger.info("the renderer at %s answers", service.url)
                return
        self.context.logger.warning(
            "the renderer at %s has not answered in %d tries (%s): see vllm.url", service.url, WARM_UP_TRIES, problem
        )


def _authorization(request: InferenceRequest) -> str:
    """The client's credential, for a renderer that asks for one as the model servers do."""
    value = request.headers.get("authorization", "")
    return f"Authorization: {value}\r\n" if value.isascii() and value.isprintable() and value else ""
