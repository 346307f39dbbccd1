"""Image edits and transcriptions: `multipart/form-data` bodies, read and rewritten without touching the files in them."""

from __future__ import annotations

import json
from email import message_from_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import Parameters, PluginContext, Rejection
from endpick_builtin.parsers.openai import FORMS, OpenAIParser

PARSER = OpenAIParser("openai", Parameters(), PluginContext())
BOUNDARY = "----WebKitFormBoundaryx9"
HEADERS = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}


def form(fields: dict[str, str], file: bytes = b"\x89PNG\r\n\x1a\n\0", boundary: str = BOUNDARY) -> bytes:
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{text}'.encode() for name, text in fields.items()]
    head = b'Content-Disposition: form-data; name="image"; filename="model"\r\nContent-Type: image/png\r\n\r\n'
    delimiter = f"--{boundary}\r\n".encode()
    return b"".join(delimiter + part + b"\r\n" for part in (*parts, head + file)) + f"--{boundary}--\r\n".encode()


@pytest.mark.parametrize("path", [f"/v1{suffix}" for suffix in FORMS])
def test_model_prompt_and_stream_are_fields(path):
    parsed = PARSER.parse(path, HEADERS, form({"model": "m", "prompt": "a cat", "stream": "true"}))

    assert (parsed.model, parsed.prompt.texts, parsed.streaming, parsed.payload) == ("m", (b"a cat",), True, None)


TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=40)


@given(TEXT, TEXT, st.binary(max_size=200).filter(lambda file: BOUNDARY.encode() not in file))
def test_rewriting_changes_the_model_alone(model, prompt, file):
    body = form({"prompt": prompt, "model": model, "size": "1x1"}, file)

    rewritten = PARSER.rewrite_model(body, PARSER.parse("/v1/images/edits", HEADERS, body), "other")

    assert rewritten == form({"prompt": prompt, "model": "other", "size": "1x1"}, file)
    parts = message_from_bytes(f"Content-Type: {HEADERS['content-type']}\r\n\r\n".encode() + rewritten).get_payload()
    assert parts[1].get_payload(decode=True) == b"other"


@pytest.mark.parametrize(("written", "boundary"), [('"a b"', "a b"), ("ab", "ab")])
def test_the_boundary_may_be_quoted(written, boundary):
    headers = {"content-type": f"Multipart/Form-Data; charset=utf-8; boundary={written}"}

    assert PARSER.parse("/v1/images/edits", headers, form({"model": "m"}, boundary=boundary)).model == "m"


@pytest.mark.parametrize(
    ("headers", "body", "reason"),
    [
        ({}, form({"model": "m"}), "the content-type is not multipart/form-data with a boundary"),
        ({"content-type": "application/json"}, b'{"model":"m"}', "the content-type is not multipart/form-data with a boundary"),
        ({"content-type": "multipart/form-data"}, form({"model": "m"}), "the content-type is not multipart/form-data with a boundary"),
        (HEADERS, b"", "the body has no form field"),
        (HEADERS, form({"model": "m"}, boundary="another"), "the body has no form field"),
        (HEADERS, f"--{BOUNDARY}\r\nno end".encode(), "the body has no form field"),
        (HEADERS, b"\0" * 1000, "the body has no form field"),
        (HEADERS, form({"x" * 8192: "m"}), "the head of a part is longer than 8192 bytes"),
    ],
)
def test_a_body_that_is_no_form_is_refused(headers, body, reason):
    assert PARSER.parse("/v1/images/edits", headers, body) == Rejection(f"error parsing multipart form: {reason}", status=400)


def test_a_field_begins_its_line():
    elsewhere = f'--{BOUNDARY}\r\nX-Note: content-disposition: form-data; name="model"\r\n\r\nm\r\n'.encode()

    assert PARSER.parse("/v1/images/edits", HEADERS, elsewhere + form({"prompt": "p"})).model == ""


def test_speech_is_text_and_needs_its_input():
    parsed = PARSER.parse("/v1/audio/speech", {}, b'{"model":"tts","input":"hello","voice":"x"}')

    assert (parsed.model, parsed.prompt.texts) == ("tts", (b"hello",))
    missing = PARSER.parse("/v1/audio/speech", {}, b'{"model":"tts"}')
    assert missing == Rejection("invalid audio speech request: must have input field", status=400)


@given(st.integers(-(10**40), 10**40), st.integers(-(10**6), 10**6))
def test_integers_keep_their_digits_when_a_body_changes(seed, priority):
    body = json.dumps({"model": "a", "prompt": "x", "seed": seed, "n": [seed]}).encode()
    parsed = PARSER.parse("/v1/completions", {}, body)

    renamed = PARSER.rewrite_model(body, parsed, "b")

    assert json.loads(renamed) == {"model": "b", "prompt": "x", "seed": seed, "n": [seed]}
    assert json.loads(PARSER.rewrite_priority(renamed, parsed, priority)) == {**json.loads(renamed), "priority": priority}
