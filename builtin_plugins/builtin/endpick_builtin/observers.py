"""Response observers that report: an attribute of the usage to the gateway, and the endpoint that served to a test."""

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
    """Where the gateway finds the attribute."""

    namespace: Annotated[str, Field(min_length=1, description="Namespace of the dynamic metadata.")] = "envoy.lb"
    name: Annotated[str, Field(min_length=1, description="Key in the namespace.")]


class Attribute(_Part):
    """What is reported, and when."""

    key: Annotated[AttributeKey, Field(description="Where the gateway finds it.")]
    expression: Annotated[str, Field(min_length=1, description="CEL expression over `usage` that gives a number.")]
    condition: Annotated[str, Field(description="CEL expression over `usage`; reported only where it is true. Empty: always.")] = ""


class AttributeReporterParameters(Parameters):
    """What is reported."""

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
        """Its value; raises when it has none."""


class RequestAttributeReporter(ResponseObserver[AttributeReporterParameters]):
    """Report a number that follows from a response's token counts to the gateway, as dynamic metadata with the last piece.

    CEL expressions see `usage.prompt_tokens`, `usage.completion_tokens`, `usage.total_tokens` and, where the model server told it,
    `usage.prompt_tokens_details.cached_tokens`, also under llm-d's spelling `prompt_token_details`. A fraction is cut off; 0, -1 and what
    is no number are not reported, nor is anything without usage. An expression without a value is logged. Needs the package `cel-python`
    (`pip install 'endpick[cel]'`), and takes 0.15 ms for each expression at the end of a response.
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
        """See the class."""
        if usage is None:
            return None
        try:
            seen = self._cel.variables(usage)  # no count beyond 64 bits is a number of CEL
            if self._condition is not None and not self._condition.evaluate(seen):
                return None
            value = self._expression.evaluate(seen)
        except Exception as problem:  # celpy has errors of its own, and lets some of Python's through
            self._log(problem)
            return None
        # Numbers of celpy are Python's; its booleans are numbers, too, under a name of their own.
        if not isinstance(value, int | float) or "Bool" in type(value).__name__ or isinstance(value, bool):
            return None
        try:
            number = int(value)
        except (ValueError, OverflowError):
            return None
        return None if number in _NEVER_WRITTEN else {self._key.namespace: {self._key.name: number}}

    def _log(self, problem: Exception) -> None:
        """Twice a minute at most."""
        now = self.context.clock()
        if now - self._logged_at >= _LOG_SECONDS:
            self._logged_at = now
            self.context.logger.warning("'%s' is not reported: its expression or condition has no value: %s", self._key.name, problem)


class Expressions:
    """What reads CEL: an extra, which takes 0.1 s to import."""

    def __init__(self) -> None:
        """Import it.

        Raises:
            ConfigurationError: it is not installed.
        """
        try:
            self._celpy: Any = import_module("celpy")
        except ImportError as missing:
            raise ConfigurationError("CEL expressions need the package 'cel-python': pip install 'endpick[cel]'") from missing

    def compiled(self, expression: str) -> Program:
        """The expression, ready to be evaluated. Raises ConfigurationError when it is no CEL."""
        environment = self._celpy.Environment()
        try:
            program: Program = environment.program(environment.compile(expression))
        except self._celpy.CELParseError as problem:
            raise ConfigurationError(f"'{expression}' is not a CEL expression: {problem}") from problem
        return program

    def variables(self, usage: Usage) -> Mapping[str, object]:
        """What expressions see."""
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
    """Tell the client of a conformance test which endpoint the gateway says has served it, in `x-conformance-test-served-endpoint`.

    The value begins with `fail:` where the gateway does not say.
    """

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> Mapping[str, str]:
        """See the class."""
        return {SERVED_HEADER: head.served or "fail: missing destination endpoint served metadata"}
