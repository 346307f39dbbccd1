"""Another model is written into a body, and nothing else of it changes."""

from __future__ import annotations

import json

import pytest
from endpick_builtin.parsers.model_field import with_model
from hypothesis import given
from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["model", "a", '"model"', "{"]) | st.text(), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.text(), st.text(), st.booleans())
def test_rewriting_any_object_changes_exactly_the_model(payload, old, new, spaced):
    payload = {**payload, "model": old}
    body = json.dumps(payload, indent=2 if spaced else None, ensure_ascii=spaced).encode("utf-8", "surrogatepass")
    assert json.loads(with_model(body, new)) == {**payload, "model": new}


NAMED = st.recursive(
    st.sampled_from(["model", '"model', 'model"', "\\", '\\"model"', 1]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["model", '"model', "a", "\\"]), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["a", "b", '"model', "model", "\\"]), NAMED, max_size=4), st.booleans())
def test_the_name_is_found_in_its_place_however_many_there_are(payload, is_named):
    if is_named:
        payload["model"] = "old"
    elif "model" in payload:
        del payload["model"]
    rewritten = json.loads(with_model(json.dumps(payload).encode(), "new"))
    assert rewritten == {**payload, "model": "new"}


@pytest.mark.parametrize("before", [0, 1, 5])
@pytest.mark.parametrize("behind", [0, 1, 5])
def test_a_repeated_model_is_exchanged_everywhere_and_one_further_in_nowhere(before, behind):
    deep = b'{"model":"old"},'
    body = b'{"model":"old","a":[%s1],"model" : "old","b":[%s1]}' % (deep * before, deep * behind)
    expected = b'{"model":"new","a":[%s1],"model" : "new","b":[%s1]}' % (deep * before, deep * behind)
    assert with_model(body, "new") == expected


def test_names_behind_backslashes_do_not_cost_what_stands_before_each():
    class Counting(bytes):
        copied = 0

        def __getitem__(self, index):
            part = super().__getitem__(index)
            Counting.copied += len(part) if isinstance(index, slice) else 1
            return part

    with_model(Counting(b'{"a":"%s",%s}' % (b"x" * 100_000, b",".join([b'"\\"model":1'] * 1000))), "new")
    assert Counting.copied < 500_000


@pytest.mark.parametrize("slashes", [1, 2, 63, 64, 65, 1000, 1001])
def test_a_name_is_the_models_only_behind_an_even_number_of_backslashes(slashes):
    body = json.dumps({"model": "old", "\\" * slashes + '"model': 1}).encode()
    assert json.loads(with_model(body, "new")) == {"model": "new", "\\" * slashes + '"model': 1}
