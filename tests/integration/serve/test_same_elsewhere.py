"""A body that the helper parses is what it is where the event loop parses it."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endpick.api import Rejection
from endpick.requests.large import BodyRead
from integration.serve.large import CHAT, parser, reading

pytestmark = pytest.mark.asyncio


def in_place(instance, path: str, body: bytes, rewrite: str | None):
    """What the parser says here: the answer, and the body that names another model."""
    parsed = instance.plugin.parse(path, {}, body)
    if isinstance(parsed, Rejection):
        return parsed, None
    target = rewrite or parsed.model
    rewritten = instance.plugin.rewrite_model(body, parsed, target) if target != parsed.model else body
    return parsed, None if rewritten == body else rewritten


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": st.text() | JSON})
REQUEST = st.fixed_dictionaries(
    {},
    optional={
        "model": st.text() | JSON,
        "messages": st.lists(MESSAGE | JSON, max_size=4),
        "prompt": st.text() | st.lists(st.integers(0, 2**32)) | JSON,
        "input": JSON,
        "stream": st.booleans() | JSON,
        "max_tokens": st.integers() | JSON,
        "cache_salt": st.text() | JSON,
        "tools": JSON,
    },
)
BODY = st.binary(max_size=60) | (REQUEST | JSON).map(lambda value: json.dumps(value).encode())
PATH = st.sampled_from([CHAT, "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/conversations", "/elsewhere"])
CASE = st.tuples(PATH, BODY, st.none() | st.text(min_size=1))


async def test_a_body_parsed_elsewhere_is_what_it_is_parsed_in_place():
    instance, twin = parser(maxPrompts=3, maxValues=30), parser(maxPrompts=3, maxValues=30)
    async with reading() as bodies:
        # One helper for all examples, which hypothesis wants to draw from a plain function.
        loop = asyncio.get_running_loop()

        @settings(max_examples=150)
        @given(CASE)
        def compare(case):
            path, body, rewrite = case
            answer = asyncio.run_coroutine_threadsafe(bodies.read(instance, body, path, rewrite=rewrite), loop).result(20)
            parsed, rewritten = in_place(twin, path, body, rewrite)
            if isinstance(parsed, Rejection):
                assert answer == parsed
                return
            assert isinstance(answer, BodyRead)
            assert answer.body == rewritten
            assert answer.parsed.payload is None
            for field in ("model", "streaming", "max_output_tokens", "cache_salt", "needs_model"):
                assert getattr(answer.parsed, field) == getattr(parsed, field), field
            assert answer.parsed.prompt.texts == parsed.prompt.texts

        await asyncio.to_thread(compare)
        assert bodies.value("endpick_body_helper_starts_total") == 1
