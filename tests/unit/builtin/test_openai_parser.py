"""The OpenAI parser: prompts, limits, media, and usage in responses."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import Media, Modality, ParsedRequest, Rejection, Usage
from endpick_builtin.parsers.openai import MAX_PROMPTS, OpenAIParser, PassthroughParser
from unit.scheduling.workbench import instance

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
RESPONSES, CONVERSATIONS = "/v1/responses", "/v1/conversations"
HELLO = [{"role": "user", "content": "Hello"}]

parser = instance(OpenAIParser).plugin


def parse(path, **body):
    return parser.parse(path, {}, json.dumps({"model": "m", **body}).encode())


def tokens(*ids):
    return struct.pack(f"<{len(ids)}I", *ids)


@pytest.mark.parametrize(
    ("path", "body", "texts"),
    [
        (COMPLETIONS, {"prompt": "Hi"}, (b"Hi",)),
        (COMPLETIONS, {"prompt": ["x"]}, (b"x",)),
        (COMPLETIONS, {"prompt": ["prompt1", "prompt2"]}, (b"prompt1", b"prompt2")),
        (COMPLETIONS, {"prompt": [1, 2, 3]}, (tokens(1, 2, 3),)),
        (COMPLETIONS, {"prompt": [[1, 2], [3]]}, (tokens(1, 2), tokens(3))),
        ("/anything/else", {"prompt": "Hi"}, (b"Hi",)),
        (EMBEDDINGS, {"input": "Grüße"}, ("Grüße".encode(),)),
        (EMBEDDINGS, {"input": ["a", "b"]}, (b"a", b"b")),
        (EMBEDDINGS, {"input": [1, 2, 3]}, (tokens(1, 2, 3),)),
        (CHAT, {"messages": HELLO}, (b"userHello",)),
        (CHAT, {"messages": [*HELLO, {"role": "assistant", "content": None}]}, (b"userHelloassistant",)),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}, (b"userab",)),
        (RESPONSES, {"input": "Hi", "instructions": "Be nice"}, (b'[{"instructions":"Be nice"},{"input":"Hi"}]',)),
        (CONVERSATIONS, {"items": [{"type": "message"}]}, (b'[{"type":"message"}]',)),
        ("/v1/images/generations", {"prompt": "a cat"}, (b"a cat",)),
    ],
)
def test_prompts_are_rendered(path, body, texts):
    assert parse(path, **body).prompt.texts == texts


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (COMPLETIONS, {}, "invalid completions request: must have prompt field"),
        (COMPLETIONS, {"prompt": []}, "invalid completions request: must have prompt field"),
        (COMPLETIONS, {"prompt": ""}, "invalid completions request: must have prompt field"),
        (COMPLETIONS, {"prompt": 123}, "invalid completions request: must have prompt field"),
        (COMPLETIONS, {"prompt": ["a", 1]}, "invalid completions request: must have prompt field"),
        (COMPLETIONS, {"prompt": [1, -1]}, "invalid completions request: must have prompt field"),
        (COMPLETIONS, {"prompt": [True]}, "invalid completions request: must have prompt field"),
        (CHAT, {}, "invalid chat completions request: must have valid messages field"),
        (CHAT, {"messages": "invalid"}, "invalid chat completions request: must have valid messages field"),
        (CHAT, {"messages": []}, "invalid chat completions request: must have valid messages field"),
        (CHAT, {"messages": [{"role": 123, "content": "x"}]}, "invalid chat completions request: must have valid messages field"),
        (CHAT, {"messages": [{"role": "user", "content": 123}]}, "invalid chat completions request: must have valid messages field"),
        (CHAT, {"messages": ["hello"]}, "invalid chat completions request: must have valid messages field"),
        (CHAT, {"messages": HELLO, "tools": "invalid"}, "invalid chat completions request: tools must be a list"),
        (CHAT, {"messages": HELLO, "documents": "invalid"}, "invalid chat completions request: documents must be a list"),
        (CHAT, {"messages": HELLO, "chat_template": 123}, "invalid chat completions request: chat_template must be a string"),
        (
            CHAT,
            {"messages": HELLO, "add_generation_prompt": "invalid"},
            "invalid chat completions request: add_generation_prompt must be true or false",
        ),
        (
            CHAT,
            {"messages": HELLO, "chat_template_kwargs": "invalid"},
            "invalid chat completions request: chat_template_kwargs must be an object",
        ),
        (RESPONSES, {}, "invalid responses request: must have input field"),
        (CONVERSATIONS, {}, "invalid conversations request: must have items field"),
        (CONVERSATIONS, {"items": []}, "invalid conversations request: must have items field"),
        (EMBEDDINGS, {}, "invalid embeddings request: must have input field"),
        (EMBEDDINGS, {"input": None}, "invalid embeddings request: must have input field"),
        (COMPLETIONS, {"prompt": "x", "model": 7}, "model not found in request body"),
    ],
)
def test_invalid_field_is_400_and_named(path, body, message):
    assert parse(path, **body) == Rejection(message, status=400)


@pytest.mark.parametrize("body", [b"no healthy upstream", b"", b"[1]", b'"text"', b"null", b'{"a":', b"\xff\xfe", b'{"prompt":"\\ud800"'])
def test_body_that_is_no_json_object_is_400(body):
    rejection = parser.parse(COMPLETIONS, {}, body)
    assert isinstance(rejection, Rejection)
    assert rejection.status == 400
    assert rejection.message.startswith("error unmarshaling request bodyMap: ")


@pytest.mark.parametrize(
    ("path", "body", "limit"),
    [
        (CHAT, {"messages": HELLO, "max_completion_tokens": 5, "max_tokens": 9}, 5),
        (CHAT, {"messages": HELLO, "max_completion_tokens": -1, "max_tokens": 9}, 9),
        (CHAT, {"messages": HELLO, "max_completion_tokens": True}, None),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 0}, 0),
        (COMPLETIONS, {"prompt": "x", "max_tokens": 1.5}, None),
        (RESPONSES, {"input": "x", "max_output_tokens": 7}, 7),
    ],
)
def test_output_limit_is_the_first_whole_number(path, body, limit):
    assert parse(path, **body).max_output_tokens == limit


def test_model_salt_and_streaming_are_read():
    parsed = parse(CHAT, messages=HELLO, stream=True, cache_salt="abc123")
    assert (parsed.model, parsed.streaming, parsed.cache_salt) == ("m", True, "abc123")
    assert parse(CHAT, messages=HELLO, stream="yes").streaming is False


def test_prompt_is_rendered_lazily_and_once():
    rendered = []
    prompt = type(parse(CHAT, messages=HELLO).prompt)(lambda: rendered.append(1) or (b"x",))
    assert rendered == []
    assert prompt.texts == prompt.texts == (b"x",)
    assert rendered == [1]


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text()), min_size=1, max_size=5), st.text())
def test_longer_conversation_extends_the_shorter_one(turns, reply):
    messages = [{"role": role, "content": text} for role, text in turns]
    [shorter] = parse(CHAT, messages=messages).prompt.texts
    [longer] = parse(CHAT, messages=[*messages, {"role": "assistant", "content": reply}]).prompt.texts
    assert longer.startswith(shorter)


def test_images_render_by_their_url():
    def texts(url):
        return parse(CHAT, messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]).prompt.texts

    assert texts("http://a/1.png") == texts("http://a/1.png") != texts("http://a/2.png")


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        ({"object": "chat.completion", "usage": {"prompt_tokens": 10, "completion_tokens": 20, "total_tokens": 30}}, Usage(10, 20)),
        ({"object": "conversation", "usage": {"input_tokens": 15, "output_tokens": 25, "total_tokens": 40}}, Usage(15, 25)),
        ({"object": "unknown_type", "usage": {"input_tokens": 5, "completion_tokens": 5}}, Usage(5, 5)),
        (
            {
                "object": "text_completion",
                "usage": {"prompt_tokens": 11, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 10}},
            },
            Usage(11, 100, 10),
        ),
        ({"usage": {"input_tokens": 1, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 0}}}, Usage(1, 2, 0)),
        ({"results": [{"index": 0}], "usage": {"total_tokens": 56}}, Usage(56, 0)),
        ({"text": "Hi", "usage": {"type": "tokens", "input_tokens": 14, "output_tokens": 45, "total_tokens": 59}}, Usage(14, 45)),
        ({"usage": {"input_tokens": 14, "output_tokens": 4, "input_token_details": {"cached_tokens": 3}}}, Usage(14, 4, 3)),
        ({"text": "Hi", "usage": {"type": "duration", "seconds": 5}}, None),
        ({"usage": {"prompt_tokens": "many"}}, None),
        ({"usage": None}, None),
        ({"usage": [1]}, None),
        ({"object": "chat.completion"}, None),
    ],
)
def test_usage_in_json_responses(body, usage):
    assert parser.usage(json.dumps(body).encode(), streaming=False) == usage


@pytest.mark.parametrize("body", [b"", b"{malformed", b"no healthy upstream", b'"usage"', b'{"usage":', b'tail of it "usage":{'])
def test_unreadable_response_has_no_usage(body):
    assert parser.usage(body, streaming=False) is None


def test_usage_in_the_end_of_a_response():
    tail = b'0.5,0.25],"index":7}],"usage":{"prompt_tokens":8,"prompt_tokens_details":{"cached_tokens":4},"total_tokens":8},"id":"x"}'
    assert parser.usage(tail, streaming=False) == Usage(8, 0, 4)


@pytest.mark.parametrize(
    ("events", "usage"),
    [
        (b'data: {}\n\ndata: {"usage":{"prompt_tokens":7,"total_tokens":17,"completion_tokens":10}}\n\ndata: [DONE]\n\n', Usage(7, 10)),
        (
            b'event: response.completed\ndata: {"type":"response.completed","response":{"usage":{"input_tokens":31}}}\n\n',
            Usage(31, 0),
        ),
        (b'data: {"type":"response.in_progress","response":{"usage":{"input_tokens":31,"output_tokens":3}}}\n\n', None),
        (
            (
                b'data: {"type":"response.output_text.delta","delta":"x"}\n\n'
                b'data: {"type":"response.completed","response":{"usage":{"input_tokens":39,"output_tokens":10}}}\r\n\r\n'
            ),
            Usage(39, 10),
        ),
        (b'data: {"usage":{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":10}}}\n\ndata: [DONE]\n\n', Usage(10, 0, 10)),
        (b'data:{"usage":{"prompt_tokens":1}}\n\ndata: {"usage":{"prompt_tokens":2}}\n\n', Usage(2, 0)),
        (b'data: {"choices":[{"delta":{"content":"usage"}}],"usage":null}\n\n', None),
        (b'data: {broken "usage"\n\ndata: [DONE]\n\n', None),
        (b'data: {"type":"response.incomplete","response":{"usage":{"input_tokens":3,"output_tokens":9}}}\n\n', Usage(3, 9)),
        (b'data: {"type":"response.failed","response":{"usage":{"input_tokens":3,"output_tokens":1}}}\n\n', Usage(3, 1)),
        (b'data: {"type":"transcript.text.done","text":"Hi","usage":{"input_tokens":14,"output_tokens":45}}\n\n', Usage(14, 45)),
        (b'data: {"usage":\ndata: {"prompt_tokens":7,\ndata:  "completion_tokens":2}\ndata: }\n\n', Usage(7, 2)),
        (b'data: {"usage":{"prompt_tokens":7}}\ndata: {"usage":{"completion_tokens":2}}\n\n', Usage(7, 2)),
        (b'data: {"usage":{"prompt_tokens":7}}\n\ndata: {"usage":{"completion_tokens":1}}\n\n', Usage(7, 1)),
    ],
)
def test_usage_in_events(events, usage):
    assert parser.usage(events, streaming=True) == usage


def test_passthrough_parser_accepts_anything():
    passthrough = instance(PassthroughParser).plugin
    assert passthrough.claims == ()
    assert passthrough.parse("/x", {}, b"\x00\xff") == ParsedRequest(needs_model=False)
    assert passthrough.rewrite_model(b"\x00", ParsedRequest(), "m") == b"\x00"


@pytest.mark.parametrize(
    ("path", "field", "prompt"), [(COMPLETIONS, "prompt", "x"), (COMPLETIONS, "prompt", [1]), (EMBEDDINGS, "input", "x")]
)
def test_number_of_prompts_is_limited(path, field, prompt):
    assert isinstance(parse(path, **{field: [prompt] * MAX_PROMPTS}), ParsedRequest)
    assert parse(path, **{field: [prompt] * (MAX_PROMPTS + 1)}).status == 413


@pytest.mark.parametrize(
    ("part", "media"),
    [
        ({"type": "image_url", "image_url": {"url": "https://a/b.png"}}, Media(Modality.IMAGE, "https://a/b.png")),
        ({"type": "image_url", "image_url": "https://a/b.png"}, Media(Modality.IMAGE, "https://a/b.png")),
        ({"type": "video_url", "video_url": {"url": "https://a/b.mp4"}}, Media(Modality.VIDEO, "https://a/b.mp4")),
        ({"type": "audio_url", "audio_url": {"url": "data:x"}}, Media(Modality.AUDIO, "data:x")),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, Media(Modality.AUDIO, "AAAAwav")),
    ],
)
def test_media_are_separate_pieces(part, media):
    content = [{"type": "text", "text": "look: "}, part, {"type": "text", "text": "well?"}]
    prompt = parse(CHAT, messages=[{"role": "user", "content": content}]).prompt
    assert prompt.pieces == ((b"user", b"look: ", media, b"well?"),)
    assert prompt.media == (media,)
    assert media.content.removesuffix("wav").encode() in prompt.texts[0]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url"},
        {"type": "image_url", "image_url": {"url": ""}},
        {"type": "video_url", "video_url": {"url": 1}},
        {"type": "input_audio", "input_audio": {"data": 1}},
        {"type": "input_audio", "input_audio": "AAAA"},
        {"type": "file", "file": {"file_id": "f"}},
        {},
        "text",
    ],
)
def test_parts_without_media_render_as_json(part):
    prompt = parse(CHAT, messages=[{"role": "user", "content": [part]}]).prompt
    assert prompt.media == ()
    assert prompt.pieces == ((b"user", json.dumps(part, separators=(",", ":")).encode()),)


def test_prompt_without_media_is_its_texts():
    prompt = parse(COMPLETIONS, prompt=["a", "b"]).prompt
    assert (prompt.pieces, prompt.media) == (((b"a",), (b"b",)), ())


def test_tools_precede_the_pieces():
    prompt = parse(CHAT, messages=HELLO, tools=[{"type": "function"}]).prompt
    assert prompt.pieces == ((b'[{"type":"function"}]', b"user", b"Hello"),)
