"""Arbitrary input of clients and services to producers."""

from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from endpick.api import InferenceRequest, Media, Modality, Unavailable
from endpick_builtin.pairs.sessions import cookie
from endpick_builtin.producers.latency_ledger import Objectives
from endpick_builtin.producers.latency_service import predictions_in
from endpick_builtin.producers.token_estimate import EstimateParameters, image_size
from endpick_builtin.producers.token_producer import has_tokens, prompts_in, question_of

NAMES = st.sampled_from(
    ["token_ids", "features", "mm_hashes", "mm_placeholders", "image", "offset", "length", "predictions", "ttft_ms", "tpot_ms"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)
STARTS = st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"\xff\xd8", b"\xff\xd8\xff\xe0\0\2\xff\xc0\0\x11"])
HEADERS = st.dictionaries(
    st.sampled_from(["x-llm-d-video-fps", "x-llm-d-video-duration-seconds", "x-llm-d-video-resolution", "x-slo-ttft-ms", "x-slo-tpot-ms"]),
    st.text()
    | st.floats().map(str)
    | st.integers().map(str)
    | st.tuples(st.integers(), st.integers()).map(lambda size: f"{size[0]}x{size[1]}"),
)


@given(STARTS, st.binary(max_size=80))
def test_an_image_size_is_positive_or_unknown(start, rest):
    size = image_size("data:image/any;base64," + base64.b64encode(start + rest).decode())
    assert size is None or min(size) > 0


@pytest.mark.parametrize(("empty_segments", "size"), [(0, (7, 5)), (20, (7, 5)), (40, None)])
def test_a_bounded_number_of_jpeg_segments_is_read(empty_segments, size):
    content = b"\xff\xd8" + b"\xff\xe1\0\2" * empty_segments + b"\xff\xc0\0\x11\x08\0\5\0\7" + bytes(90_000)
    assert image_size("data:image/jpeg;base64," + base64.b64encode(content).decode()) == size


@pytest.mark.parametrize(("preview_bytes", "size"), [(40_000, (7, 5)), (60_000, None)])
def test_a_jpeg_may_have_a_preview(preview_bytes, size):
    preview = b"\xff\xe1" + (preview_bytes + 2).to_bytes(2, "big") + bytes(preview_bytes)
    content = b"\xff\xd8" + preview + b"\xff\xc0\0\x11\x08\0\5\0\7\3"
    assert image_size("data:image/jpeg;base64," + base64.b64encode(content).decode()) == size


@given(st.text())
def test_a_link_has_no_size(text):
    assert image_size(text) is None
    assert image_size("data:image/png;base64," + text) is None or text


@example(Modality.VIDEO, "", {"x-llm-d-video-duration-seconds": "1e308", "x-llm-d-video-fps": "1e308"})
@given(st.sampled_from(Modality), st.text() | st.just("data:image/png;base64,"), HEADERS)
def test_media_have_at_least_one_token(modality, content, headers):
    assert EstimateParameters().tokens(Media(modality, content), headers) >= 1


@given(JSON)
def test_any_answer_is_read_or_unavailable(answer):
    with contextlib.suppress(Unavailable):
        assert all(len(prompt.token_ids) for prompt in prompts_in(answer))
    with contextlib.suppress(Unavailable):
        assert len(predictions_in(answer, 1)) == 1


@given(HEADERS)
def test_objectives_are_never_negative(headers):
    objectives = Objectives.of(headers)
    assert 0 <= objectives.ttft < float("inf")
    assert 0 <= objectives.tpot < float("inf")


@given(
    st.dictionaries(st.sampled_from(["prompt", "input", "messages", "tools"]), JSON),
    st.sampled_from(["/v1/completions", "/v1/chat/completions"]),
)
def test_any_payload_can_be_inspected(payload, path):
    request = InferenceRequest("r", path=path, payload=payload)
    has_tokens(request)
    question_of(request, "m")


@given(st.text(), st.text())
def test_any_cookie_header_can_be_read(header, name):
    assert isinstance(cookie(header, name), str)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ('xsession=1; sessions=2; b=session; session ; session = "x y" ;session=3', "x y"),
        ("session", ""),
        ("session=", ""),
        ("session=a=b", "a=b"),
    ],
)
def test_a_cookie_is_found_by_its_name(header, value):
    assert cookie(header, "session") == value
