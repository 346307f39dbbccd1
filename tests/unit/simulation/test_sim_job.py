"""How a request becomes a prompt in tokens, and what answer it is given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick_lab.openai import (
    BYTES_PER_TOKEN,
    ApiError,
    ChatRequest,
    CompletionRequest,
    Message,
    chained_hashes,
    count_tokens,
    padded,
    plan_job,
)
from endpick_lab.settings import EngineSettings, ServerSettings

SETTINGS = ServerSettings(engine=EngineSettings(kv_blocks=64, block_size=4, max_model_len=256))
MESSAGES = st.lists(st.builds(Message, role=st.sampled_from(["system", "user", "assistant"]), content=st.text(max_size=30)), min_size=1)


def chat(messages: list[Message], **fields: object) -> ChatRequest:
    return ChatRequest.model_validate({"model": "sim-model", "messages": [message.model_dump() for message in messages], **fields})


@given(MESSAGES, st.text(max_size=30), st.integers(1, 20))
def test_the_next_turn_begins_with_this_prompt_and_its_answer(messages: list[Message], question: str, tokens: int):
    settings = ServerSettings(engine=EngineSettings(kv_blocks=10_000, max_model_len=100_000))
    first = chat(messages, max_tokens=tokens, ignore_eos=True)
    answer = plan_job(first, settings).answer
    second = chat([*messages, Message(role="assistant", content=answer), Message(role="user", content=question)])
    assert second.render().startswith(first.render() + answer.encode())


@given(st.text(max_size=100))
def test_any_text_is_whole_tokens_and_keeps_its_bytes(text: str):
    content = padded(text)
    assert count_tokens(content) * BYTES_PER_TOKEN == len(content)
    assert content.startswith(text.encode())
    assert len(content) - len(text.encode()) < BYTES_PER_TOKEN


@given(st.binary(min_size=16, max_size=128), st.binary(max_size=64), st.integers(1, 4))
def test_block_hashes_agree_exactly_as_far_as_full_blocks_do(start: bytes, end: bytes, block_size: int):
    one, other = chained_hashes(start, block_size), chained_hashes(start + end, block_size)
    assert len(one) == len(start) // (4 * block_size)
    assert other[: len(one)] == one
    changed = chained_hashes(bytes([start[0] ^ 1]) + start[1:], block_size)
    assert not set(one) & set(changed)
    assert not set(one) & set(chained_hashes(start, block_size, salt="adapter"))


@pytest.mark.parametrize(
    ("fields", "length", "reason"),
    [
        ({"max_tokens": 5}, 5, "length"),
        ({"max_completion_tokens": 4, "max_tokens": 5}, 4, "length"),
        ({"max_tokens": 200, "ignore_eos": True}, 200, "length"),
        ({"min_tokens": 150}, 150, "stop"),
        ({"ignore_eos": True}, 256 - 10, "length"),
    ],
)
def test_the_length_of_an_answer_follows_what_was_asked(fields: dict[str, object], length: int, reason: str):
    job = plan_job(chat([Message(role="user", content="four")], **fields), SETTINGS)
    assert (job.generation.prompt_tokens, job.generation.output_tokens, job.finish_reason) == (10, length, reason)
    assert len(job.answer) == length * BYTES_PER_TOKEN


def test_without_a_limit_the_model_stops_by_itself():
    job = plan_job(chat([Message(role="user", content="four")]), SETTINGS)
    assert job.finish_reason == "stop"
    assert 16 <= job.generation.output_tokens <= 128


def test_an_empty_prompt_is_refused():
    with pytest.raises(ApiError, match=r"^The prompt is empty\.$") as raised:
        plan_job(CompletionRequest(model="sim-model", prompt=""), SETTINGS)
    assert raised.value.status == 400


def test_content_parts_count_with_their_text_or_else_their_json():
    text = [{"type": "text", "text": "hello "}, {"type": "text", "text": "world"}]
    image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    assert chat([Message(role="user", content=text)]).render() == chat([Message(role="user", content="hello world")]).render()
    assert b'"image_url"' in chat([Message(role="user", content=image)]).render()
