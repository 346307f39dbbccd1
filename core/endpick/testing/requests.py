"""Requests made up for tests."""

from __future__ import annotations

from collections.abc import Mapping

from endpick.api.request import InferenceRequest, Prompt


def make_request(
    prompt: str | tuple[str, ...] = "Say something about endpoints.",
    *,
    model: str = "base",
    headers: Mapping[str, str] | None = None,
    id: str = "request-1",  # noqa: A002 - as the request's field
    path: str = "/v1/chat/completions",
    streaming: bool = False,
    max_output_tokens: int | None = None,
    priority: int = 0,
    fairness_id: str = "default-flow",
    cache_salt: str = "",
    received_at: float = 0.0,
) -> InferenceRequest:
    """A request as plugins see it; every value can be chosen, none has to be."""
    texts = tuple(text.encode() for text in ((prompt,) if isinstance(prompt, str) else prompt))
    return InferenceRequest(
        id=id,
        model=model,
        incoming_model=model,
        path=path,
        headers=dict(headers or {}),
        prompt=Prompt(lambda: texts),
        streaming=streaming,
        max_output_tokens=max_output_tokens,
        priority=priority,
        fairness_id=fairness_id,
        cache_salt=cache_salt,
        size_bytes=sum(map(len, texts)),
        received_at=received_at,
        payload={"model": model, "messages": [{"role": "user", "content": text.decode()} for text in texts]},
    )


def varied_requests() -> tuple[InferenceRequest, ...]:
    """Requests that differ in all that a plugin may look at: no prompt, no model, long and several prompts, priorities, headers."""
    return (
        make_request(),
        make_request((), model=""),
        make_request("word " * 5_000, model="a", id="request-2", streaming=True, max_output_tokens=64),
        make_request(("one", "two"), id="request-3", priority=-1, fairness_id="tenant-a", cache_salt="salt"),
        make_request("", id="request-4", priority=9, headers={"x-session-id": "s-1", "x-tenant": "acme", "authorization": "Bearer t"}),
    )
