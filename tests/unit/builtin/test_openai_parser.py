"""What the OpenAI parser reads from requests and answers, and what it changes in them."""

from __future__ import annotations

import json
import struct
import tracemalloc

import pytest
from endpick_builtin.parsers.model_field import with_model
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import Media, Modality, ParsedRequest, Rejection, Usage
from endpick_builtin.parsers.openai import OpenAIParser, PassthroughParser
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
def test_prompts(path, body, texts):
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
def test_what_cannot_be_read_is_a_400_that_says_which_field(path, body, message):
    assert parse(path, **body) == Rejection(message, status=400)


@pytest.mark.parametrize("body", [b"no healthy upstream", b"", b"[1]", b'"text"', b"null", b'{"a":', b"\xff\xfe", b'{"prompt":"\\ud800"'])
def test_a_body_that_is_no_json_object_is_a_400(body):
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
def test_the_output_limit_is_the_first_whole_number_the_api_has_a_name_for(path, body, limit):
    assert parse(path, **body).max_output_tokens == limit


def test_model_salt_and_streaming_are_noted():
    parsed = parse(CHAT, messages=HELLO, stream=True, cache_salt="abc123")
    assert (parsed.model, parsed.streaming, parsed.cache_salt) == ("m", True, "abc123")
    assert parse(CHAT, messages=HELLO, stream="yes").streaming is False


def test_the_prompt_is_rendered_only_when_asked_for_and_once():
    rendered = []
    prompt = type(parse(CHAT, messages=HELLO).prompt)(lambda: rendered.append(1) or (b"x",))
    assert rendered == []
    assert prompt.texts == prompt.texts == (b"x",)
    assert rendered == [1]


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text()), min_size=1, max_size=5), st.text())
def test_a_longer_conversation_begins_with_the_shorter_one(turns, reply):
    messages = [{"role": role, "content": text} for role, text in turns]
    [shorter] = parse(CHAT, messages=messages).prompt.texts
    [longer] = parse(CHAT, messages=[*messages, {"role": "assistant", "content": reply}]).prompt.texts
    assert longer.startswith(shorter)


def test_pictures_are_told_apart():
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
        ({"usage": {"prompt_tokens": "many"}}, None),
        ({"usage": None}, None),
        ({"usage": [1]}, None),
        ({"object": "chat.completion"}, None),
    ],
)
def test_usage_of_a_plain_answer(body, usage):
    assert parser.usage(json.dumps(body).encode(), streaming=False) == usage


@pytest.mark.parametrize("body", [b"", b"{malformed", b"no healthy upstream", b'"usage"', b'{"usage":', b'tail of it "usage":{'])
def test_an_answer_that_cannot_be_read_has_no_usage(body):
    assert parser.usage(body, streaming=False) is None


@pytest.mark.parametrize(("numbers", "usage"), [(4000, Usage(1, 0)), (40_000, None)])
def test_a_usage_whose_end_is_far_away_is_not_looked_for(numbers, usage):
    assert parser.usage(b'..."usage":{"prompt_tokens":1,"a":[0' + b",0" * numbers + b"]}}", streaming=False) == usage


def test_usage_is_found_at_the_end_of_an_answer_whose_beginning_is_missing():
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
    ],
)
def test_usage_of_streamed_events(events, usage):
    assert parser.usage(events, streaming=True) == usage


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"model":"a","prompt":"x"}', b'{"model":"new","prompt":"x"}'),
        (b'{ "prompt" : "x",\n "model" :\t"a" }', b'{ "prompt" : "x",\n "model" :\t"new" }'),
        (b'{"tools":[{"model":"a"}],"model":"a"}', b'{"tools":[{"model":"a"}],"model":"new"}'),
        (b'{"x":{"model":"a"},"prompt":"\\"model\\":\\"a\\""}', b'{"model":"new","x":{"model":"a"},"prompt":"\\"model\\":\\"a\\""}'),
        (b'{"prompt":"model","model":"a"}', b'{"prompt":"model","model":"new"}'),
        (b'{"model":"a","model":"b"}', b'{"model":"new","model":"new"}'),
        (rb'{"model":"a","mod\u0065l":"b","\u006D\u006Fdel" : "c"}', rb'{"model":"new","mod\u0065l":"new","\u006D\u006Fdel" : "new"}'),
        (rb'{"\ud800":"a","mod\\u0065l":"a"}', rb'{"model":"new","\ud800":"a","mod\\u0065l":"a"}'),
        (b'{"model":"a\\"b{","n":9007199254740993}', b'{"model":"new","n":9007199254740993}'),
        (b" {}", b' {"model":"new"}'),
        (b'{"prompt":"x"}', b'{"model":"new","prompt":"x"}'),
    ],
)
def test_rewriting_the_model_changes_nothing_else(body, expected):
    assert with_model(body, "new") == expected


@pytest.mark.parametrize(("behind", "usage"), [(31, Usage(5, 0)), (32, None), (30_000, None)])
def test_of_thousands_of_events_with_usage_the_last_are_read(behind, usage):
    events = b'data: {"usage":{"prompt_tokens":5}}\n' + b'data: {"usage":[]}\n' * behind
    assert parser.usage(events, True) == usage


@pytest.mark.parametrize("end", [b"\r", b"\n", b"data:\r", b": a\r\n"])
def test_lines_without_usage_cost_nothing_each(end):
    events = end * (1_000_000 // len(end)) + b'data: {"usage":{"prompt_tokens":5}}\r' + b"\r" * 1_000_000
    tracemalloc.start()
    try:
        assert parser.usage(events, True) == Usage(5, 0)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2 * len(events)


@pytest.mark.parametrize(("objects", "usage"), [(100, Usage(1, 0)), (200, None)])
def test_a_usage_of_hundreds_of_objects_is_none(objects, usage):
    assert parser.usage(b'..."usage":{"prompt_tokens":1' + b',"a":{}' * objects + b"}}", streaming=False) == usage


@pytest.mark.parametrize(("brackets", "expected"), [(32_760, Usage(1, 0)), (33_000, None)])
def test_an_event_that_is_all_brackets_is_not_read(brackets, expected):
    event = b'data: {"usage":{"prompt_tokens":1},"x":[' + b"[]," * brackets + b"0]}\n\n"
    assert parser.usage(event, True) == expected


def test_the_passthrough_parser_accepts_anything_and_knows_nothing():
    passthrough = instance(PassthroughParser).plugin
    assert passthrough.claims == ()
    assert passthrough.parse("/x", {}, b"\x00\xff") == ParsedRequest(needs_model=False)
    assert passthrough.rewrite_model(b"\x00", ParsedRequest(), "m") == b"\x00"


LIMITS = {"maxContainers": 100, "maxValues": 1000, "maxPrompts": 10}
ALLOWED = {
    "messages": (CHAT, {"messages": HELLO * 90}),
    "parts": (CHAT, {"messages": [{"role": "user", "content": [{}] * 90}]}),
    "tokens": (COMPLETIONS, {"prompt": [1] * 990}),
    "prompts": (COMPLETIONS, {"prompt": ["x"] * 10}),
    "inputs": (EMBEDDINGS, {"input": [[1, 2]] * 10}),
    "brackets in a text": (COMPLETIONS, {"prompt": '[{,"' * 5000}),
}
TOO_MUCH = {
    "messages": (CHAT, {"messages": HELLO * 110}, "100 objects and lists"),
    "parts": (CHAT, {"messages": [{"role": "user", "content": [{}] * 110}]}, "100 objects and lists"),
    "tools": (CHAT, {"messages": HELLO, "tools": [{}] * 110}, "100 objects and lists"),
    "whatever it may be": (RESPONSES, {"input": "x", "metadata": [[]] * 110}, "100 objects and lists"),
    "tokens": (COMPLETIONS, {"prompt": [1] * 1010}, "1000 values"),
    "numbers": (CHAT, {"messages": HELLO, "logit_bias": {str(n): n for n in range(1010)}}, "1000 values"),
    "prompts": (COMPLETIONS, {"prompt": ["x"] * 11}, "10 prompts"),
    "prompts of token ids": (COMPLETIONS, {"prompt": [[1]] * 11}, "10 prompts"),
    "inputs": (EMBEDDINGS, {"input": ["x"] * 11}, "10 prompts"),
}


@pytest.fixture
def limited():
    return instance(OpenAIParser, **LIMITS)


@pytest.mark.parametrize("what", ALLOWED)
def test_a_body_within_the_limits_is_read(limited, what):
    path, body = ALLOWED[what]
    assert isinstance(limited.plugin.parse(path, {}, json.dumps({"model": "m", **body}).encode()), ParsedRequest)


@pytest.mark.parametrize("what", TOO_MUCH)
def test_a_body_with_more_structure_than_allowed_is_refused_and_counted(limited, what):
    path, body, counted = TOO_MUCH[what]
    answer = limited.plugin.parse(path, {}, json.dumps({"model": "m", **body}).encode())
    assert answer == Rejection(f"the request body holds more than {counted}", status=400)
    (family,) = limited.registry.collect()
    (sample,) = family.samples
    assert (sample.name, sample.value) == ("endpick_parser_refusals_total", 1.0)


def test_a_limit_is_logged_with_its_name_and_not_for_each_request(limited, caplog):
    for _ in range(5):
        limited.plugin.parse(COMPLETIONS, {}, json.dumps({"prompt": ["x"] * 11}).encode())
    assert [record.getMessage() for record in caplog.records] == [
        "a request has more than 10 prompts, and was refused; maxPrompts raises the limit"
    ]


def test_reading_parts_takes_memory_for_what_they_hold():
    """A list of pieces held some kilobytes for each of them."""
    parts = 20_000
    parsed = parse(CHAT, messages=[{"role": "user", "content": [{}] * parts}])
    tracemalloc.start()
    try:
        (text,) = parsed.prompt.texts
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert text == b"user" + b"{}" * parts
    assert peak < 500 * parts


def test_a_string_full_of_escapes_takes_no_memory_for_each_of_them():
    body = b'{"model":"old","prompt":"' + rb"\n" * 2**20 + b'"}'
    tracemalloc.start()
    rewritten = with_model(body, "new")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert rewritten == body.replace(b"old", b"new", 1)
    assert peak_bytes < 4 * len(body)


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
def test_media_stand_between_the_texts_of_a_conversation(part, media):
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
def test_parts_without_media_stay_what_names_them(part):
    prompt = parse(CHAT, messages=[{"role": "user", "content": [part]}]).prompt
    assert prompt.media == ()
    assert prompt.pieces == ((b"user", json.dumps(part, separators=(",", ":")).encode()),)


def test_a_prompt_without_media_is_its_texts():
    prompt = parse(COMPLETIONS, prompt=["a", "b"]).prompt
    assert (prompt.pieces, prompt.media) == (((b"a",), (b"b",)), ())


def test_tools_stand_in_front_of_the_pieces_too():
    prompt = parse(CHAT, messages=HELLO, tools=[{"type": "function"}]).prompt
    assert prompt.pieces == ((b'[{"type":"function"}]', b"user", b"Hello"),)
