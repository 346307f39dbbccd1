"""How much structure a body has, without parsing it."""

from __future__ import annotations

import json

import orjson
import pytest
from endpick_builtin.parsers.structure import exceeded_limit
from hypothesis import example, given
from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.sampled_from('ab[]{},:"\\\n') | st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.sampled_from('[{,"\\x')), inner),
    max_leaves=30,
)


def containers(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + sum(map(containers, inner))


def values(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(values, inner))


@given(JSON, st.booleans(), st.booleans())
@example(["\\", '"', "[{,", "\\\\"], True, False)
def test_a_body_is_refused_from_one_object_too_many_on(value, ascii_only, spaced):
    body = json.dumps(value, ensure_ascii=ascii_only, separators=(", ", ": ") if spaced else (",", ":")).encode(errors="surrogatepass")
    many, all_values = containers(value), values(value)
    assert exceeded_limit(body, many, 2 * all_values) is None
    if many:
        assert exceeded_limit(body, many - 1, 2 * all_values) == "maxContainers"


@given(JSON)
def test_values_are_counted_to_within_empty_containers(value):
    """Each empty list or object makes the count one too high: nothing stands behind its bracket."""
    body = json.dumps(value).encode()
    commas = sum(len(each) - 1 for each in _filled(value))
    most = commas + containers(value)
    assert exceeded_limit(body, len(body), most) is None
    assert most <= values(value) + containers(value)
    if most:
        assert exceeded_limit(body, len(body), most - 1) == "maxValues"


def _filled(value: object) -> list[list | dict]:
    if not isinstance(value, dict | list):
        return []
    inner = value.values() if isinstance(value, dict) else value
    return [*([value] if value else []), *(found for each in inner for found in _filled(each))]


@pytest.mark.parametrize("unit", [b"{},", b"[1,", b'"\\\\",{},', b'"a\\"b[",[],'])
def test_pieces_that_are_looked_at_one_after_the_other_add_up(unit):
    body = unit * (3_000_000 // len(unit))
    containers_in = body.count(b"{") + body.count(b"[") - body.count(b'b["')
    assert exceeded_limit(body, containers_in, len(body)) is None
    assert exceeded_limit(body, containers_in - 1, len(body)) == "maxContainers"


def test_a_long_text_full_of_brackets_is_one_value():
    assert exceeded_limit(orjson.dumps({"prompt": '[{,}] \\ " ' * 300_000}), 1, 2) is None
