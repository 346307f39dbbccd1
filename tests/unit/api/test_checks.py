"""Values that no gateway would take are refused when a plugin makes them."""

from __future__ import annotations

import pytest

from endpick.api import ParsedRequest, Rejection, SchedulingResult, Usage
from endpick.api.request import shown


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: ParsedRequest(model=None), "model of a ParsedRequest must be str, not NoneType"),
        (lambda: ParsedRequest(prompt="hello"), "prompt of a ParsedRequest must be Prompt, not str"),
        (lambda: ParsedRequest(streaming=1), "streaming of a ParsedRequest must be bool, not int"),
        (lambda: ParsedRequest(max_output_tokens="9"), "max_output_tokens of a ParsedRequest must be int or None, not str"),
        (lambda: ParsedRequest(cache_salt=b""), "cache_salt of a ParsedRequest must be str, not bytes"),
        (lambda: Rejection(RuntimeError("no")), "message of a Rejection must be str, not RuntimeError"),
        (lambda: Rejection("no", "429"), "status of a Rejection must be int, not str"),
        (lambda: Rejection("no", 429, None), "reason of a Rejection must be str, not NoneType"),
        (lambda: Usage(prompt_tokens=1.5), "prompt_tokens of a Usage must be int, not float"),
        (lambda: Usage(1, None), "completion_tokens of a Usage must be int, not NoneType"),
        (lambda: Usage(1, 2, "3"), "cached_tokens of a Usage must be int or None, not str"),
        (lambda: SchedulingResult(None, {}, ()), "primary of a SchedulingResult must be str, not NoneType"),
        (lambda: SchedulingResult("a", [], ()), "runs of a SchedulingResult must be dict or Mapping, not list"),
        (lambda: SchedulingResult("a", {}, ["10.0.0.1:1"]), "destinations of a SchedulingResult must be tuple, not list"),
        (lambda: SchedulingResult("a", {}, (), {"x": 1}), "header 'x' is set to 1; names and values must be strings"),
    ],
)
def test_wrong_types_name_their_field(make, complaint):
    with pytest.raises(TypeError) as caught:
        make()
    assert str(caught.value) == complaint


@pytest.mark.parametrize("status", [0, 200, 399, 600])
def test_rejection_status_is_an_http_error(status):
    with pytest.raises(ValueError, match=f"400 to 599, not {status}"):
        Rejection("no", status)


@pytest.mark.parametrize("reason", ["two\nlines", "naïve"])
def test_rejection_reason_fits_a_header(reason):
    with pytest.raises(ValueError, match="fit for a header"):
        Rejection("no", 429, reason)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x\n", "'x\\n'"),
        (b"x", "b'x'"),
        (1, "1"),
        (0.5, "0.5"),
        (None, "None"),
        (dict, "<class 'dict'>"),
        ("x" * 1000, repr("x" * 100)),
        ([0] * 1000, "<list>"),
    ],
    ids=["text", "bytes", "number", "fraction", "nothing", "class", "long text", "long list"],
)
def test_shown_is_short(value, text):
    assert shown(value) == text
