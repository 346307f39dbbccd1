"""Prompts with media come out of the helper as they went in."""

from __future__ import annotations

import contextlib
import json
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import Media, Modality
from endpick.serve.bodies.layout import laid_out, places_in

MEDIA = st.builds(Media, st.sampled_from(Modality), st.text() | st.just("\ud800"))
PROMPTS = st.lists(st.lists(st.binary(max_size=8) | MEDIA, max_size=6), max_size=4)


def read_layout(layout: bytes, content: bytes) -> tuple:
    prompts, start = [], 0
    for places in places_in(layout, len(content)):
        pieces = []
        for place in places:
            pieces.append(place.read(content[start : start + place.size]))
            start += place.size
        prompts.append(tuple(pieces))
    return tuple(prompts)


def with_joined_texts(prompt):
    joined = []
    for is_text, pieces in groupby(prompt, lambda piece: isinstance(piece, bytes)):
        found = list(pieces)
        joined += [b"".join(found)] if is_text else found
    return tuple(joined)


@given(PROMPTS)
def test_prompts_come_back_with_their_texts_joined(prompts):
    assert read_layout(*laid_out(prompts)) == tuple(with_joined_texts(prompt) for prompt in prompts)


@pytest.mark.parametrize(
    "layout",
    [b"", b"{", b"7", b'[["text"]]', b'[[["text", -1]]]', b'[[["text", 9]]]', b'[[["text", true]]]', b'[[["smell", 3]]]', b"[]"],
)
def test_a_layout_that_does_not_fit_is_refused(layout):
    with pytest.raises((ValueError, TypeError)):
        read_layout(layout, b"abc")


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=8))
def test_nonsense_raises_what_the_reader_expects(nonsense):
    with contextlib.suppress(ValueError, TypeError):
        read_layout(json.dumps(nonsense).encode(), b"abc")


def test_a_piece_that_is_no_piece_is_refused():
    with pytest.raises(TypeError, match="neither bytes nor Media"):
        laid_out([["text"]])
