"""`outlen-bucket`: guesses the length of a response from the request."""

from __future__ import annotations

from collections.abc import Mapping

from endpick.api import CycleState, InferenceRequest, RequestHeaderProcessor, Stability
from endpick.api.keys import OUTPUT_LENGTH, OutputLength

_LONG_THOUGHTS = 4000  # tokens
_SHORT_ANSWER = 500  # tokens
_CHAT = "/chat/completions"


def output_length(request: InferenceRequest) -> OutputLength:
    """Predict the length from thinking and tools of a chat request, then from the client's limit."""
    chat = request.payload if request.payload is not None and request.path.endswith(_CHAT) else {}
    options = chat.get("chat_template_kwargs")
    thinks = options.get("enable_thinking") if isinstance(options, Mapping) else None
    budget = options.get("thinking_budget") if isinstance(options, Mapping) else None
    if thinks is True or (thinks is None and isinstance(budget, int | float) and budget > _LONG_THOUGHTS):
        return OutputLength.LONG
    if chat.get("tools"):
        return OutputLength.SHORT
    limit = request.max_output_tokens
    return OutputLength.SHORT if limit is not None and limit < _SHORT_ANSWER else OutputLength.UNKNOWN


class OutlenBucket(RequestHeaderProcessor):
    """Expects a long or short response, for estimates of the load in flight.

    LONG: a chat with `chat_template_kwargs.enable_thinking`, or with a `thinking_budget` over 4000 and no `enable_thinking`. SHORT: a chat
    with tools, or an output limit below 500 tokens. Else UNKNOWN.
    """

    produces = (OUTPUT_LENGTH,)
    stability = Stability.EXPERIMENTAL

    def request_headers(self, request: InferenceRequest, state: CycleState) -> None:
        state.put(OUTPUT_LENGTH, output_length(request))
