"""Response observers: usage attributes, and the serving endpoint for conformance tests."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from endpick.api import (
    ConfigurationError,
    CycleState,
    InferenceRequest,
    Metadata,
    Parameters,
    PluginContext,
    ResponseHead,
    ResponseObserver,
    Usage,
)

_LOG_SECONDS = 30.0
_NEVER_WRITTEN = (0, -1)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AttributeKey(_Part):
    """Location of the attribute in the dynamic metadata."""

    namespace: Annotated[str, Field(min_length=1, description="Namespace of the dynamic metadata.")] = "envoy.lb"
    name: Annotated[str, Field(min_length=1, description="Key in the namespace.")]


class Attribute(_Part):
    """An attribute, its value and its condition."""

    key: Annotated[AttributeKey, Field(description="Location of the attribute.")]
    expression: Annotated[str, Field(min_length=1, description="CEL expression over `usage` that gives a number.")]
    condition: Annotated[
        str, Field(description="CEL expression over `usage`; the attribute is reported only if it is true. Empty: always.")
    ] = ""


class AttributeReporterParameters(Parameters):
    """The attribute to report."""

    attributes: Annotated[
        tuple[Attribute, ...],
        Field(
            min_length=1,
            max_length=1,
            description="Exactly one attribute.",
            examples=[[{"key": {"name": "tokens"}, "expression": "usage.total_tokens"}]],
        ),
    ]


class Program(Protocol):
    """A compiled CEL expression."""

    def evaluate(self, context: Mapping[str, object]) -> object:
        """The value; raises if there is none."""


class RequestAttributeReporter(ResponseObserver[AttributeReporterParameters]):
    """Reports a number computed from token usage to the gateway, as dynamic metadata at the end of the response.

    CEL expressions see `usage.prompt_tokens`, `usage.completion_tokens`, `usage.total_tokens` and, if reported,
    `usage.prompt_tokens_details.cached_tokens`, also in llm-d's spelling `prompt_token_details`. Fractions are truncated; 0, -1 and
    non-numbers are not reported. Needs `pip install 'endpick[cel]'` and takes 0.15 ms per expression.
    """

    def __init__(self, name: str, parameters: AttributeReporterParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        attribute = parameters.attributes[0]
        self._key = attribute.key
        self._cel = Expressions()
        self._expression = self._cel.compiled(attribute.expression)
        self._condition = self._cel.compiled(attribute.condition) if attribute.condition else None
        self._logged_at = -_LOG_SECONDS

    def response_metadata(self, request: InferenceRequest, usage: Usage | None, state: CycleState) -> Metadata | None:
        if usage is None:
            return None
        try:
            seen = self._cel.variables(usage)
            if self._condition is not None and not self._condition.evaluate(seen):
                return None
            value = self._expression.evaluate(seen)
        except Exception as problem:  # celpy raises its own errors and Python's
            self._log(problem)
            return None
        # celpy has its own boolean type
        if not isinstance(value, int | float) or "Bool" in type(value).__name__ or isinstance(value, bool):
            return None
        try:
            number = int(value)
        except (ValueError, OverflowError):
            return None
        return None if number in _NEVER_WRITTEN else {self._key.namespace: {self._key.name: number}}

    def _log(self, problem: Exception) -> None:
        now = self.context.clock()
        if now - self._logged_at >= _LOG_SECONDS:
            self._logged_at = now
            self.context.logger.warning("'%s' is not reported: its expression or condition has no value: %s", self._key.name, problem)


class Expressions:
    """The CEL library, which takes 0.1 s to import."""

    def __init__(self) -> None:
        try:
            self._celpy: Any = import_module("celpy")
        except ImportError as missing:
            raise ConfigurationError("CEL expressions need the package 'cel-python': pip install 'endpick[cel]'") from missing

    def compiled(self, expression: str) -> Program:
        """Raises ConfigurationError for invalid CEL."""
        environment = self._celpy.Environment()
        try:
            program: Program = environment.program(environment.compile(expression))
        except self._celpy.CELParseError as problem:
            raise ConfigurationError(f"'{expression}' is not a CEL expression: {problem}") from problem
        return program

    def variables(self, usage: Usage) -> Mapping[str, object]:
        counts: dict[str, object] = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        if usage.cached_tokens is not None:
            counts["prompt_tokens_details"] = counts["prompt_token_details"] = {"cached_tokens": usage.cached_tokens}
        return {"usage": self._celpy.json_to_cel(counts)}


SERVED_HEADER = "x-conformance-test-served-endpoint"


class DestinationEndpointServedVerifier(ResponseObserver):
    """Reports the endpoint that the gateway used to the client, in `x-conformance-test-served-endpoint`; else `fail: …`."""

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> Mapping[str, str]:
        return {SERVED_HEADER: head.served or "fail: missing destination endpoint served metadata"}
