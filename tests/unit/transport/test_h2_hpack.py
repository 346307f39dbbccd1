from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jh2._hazmat import Decoder, Encoder
from jh2.hpack.huffman_constants import REQUEST_CODES_LENGTH

from endpick.transport.h2.frames import END_HEADERS, ErrorCode, FrameType, H2ConnectionError
from endpick.transport.h2.headers import _CODE_BITS, EMPTY_TABLE, Fields, HeaderBlocks, HeaderDecoder, encode
from endpick.transport.limits import Limits

FIELDS = st.lists(st.tuples(st.binary(min_size=1, max_size=200), st.binary(max_size=400)), max_size=8)


def test_huffman_code_lengths_match_the_library():
    assert list(_CODE_BITS) == list(REQUEST_CODES_LENGTH)


@given(FIELDS)
def test_encoded_fields_decode(fields):
    assert [(name, value) for name, value, _ in HeaderDecoder(2**16).decode(EMPTY_TABLE + encode(fields))] == fields


@given(FIELDS, st.booleans())
def test_blocks_of_another_encoder_decode(fields, huffman):
    encoder, decoder = Encoder(), HeaderDecoder(2**16)
    sent = [(name, value, False) for name, value in fields]
    for _ in range(3):
        assert decoder.decode(encoder.encode(sent, huffman)) == sent


def add(blocks: HeaderBlocks, block: bytes) -> Fields | None:
    return blocks.add(FrameType.HEADERS, END_HEADERS, 1, block, 0.0)


ADD_TO_TABLE = (b"\x40\x01a\x01b", b"\x40\x01c\x01d", b"\x20\x3f\xe1\x1f\x40\x01x\x01y")
KEEP_TABLE = (b"", b"\xbe", b"\x82\xbe", b"\x82", b"\x00\x01e\x01f", b"\x10\x01e\x01f", b"\x82\x00\x01e\x01g\xbe", b"\x0f\x2f\x01h")


@given(st.lists(st.sampled_from(ADD_TO_TABLE + KEEP_TABLE)))
def test_repeated_block_follows_the_dynamic_table(blocks):
    ours, library = HeaderBlocks(Limits()), Decoder(2**16)
    for block in (b"\x40\x01x\x01y", *blocks):
        assert add(ours, block) == library.decode(block, True)


@pytest.mark.parametrize("block", [b"\x82\xbe", b"\x82\xbe\x00\x01e\x01f"], ids=["of references", "with a literal that no table remembers"])
def test_repeated_block_is_not_decoded_again(block):
    blocks = HeaderBlocks(Limits())
    add(blocks, b"\x40\x01a\x01b")
    first = add(blocks, block)
    assert add(blocks, block) is first
    add(blocks, b"\x40\x01a\x01c")
    again = add(blocks, block)
    assert again is not None
    assert again[:2] == [(b":method", b"GET", False), (b"a", b"c", False)]


def test_long_block_is_not_kept():
    decoder = HeaderDecoder(2**16)
    longest = encode([(b"a", b"b" * 1018)])
    assert len(longest) == 1024
    decoder.decode(longest)
    assert decoder.repeatable == longest
    decoder.decode(encode([(b"a", b"b" * 1019)]))
    assert not decoder.repeatable
    assert not decoder.repeated


def test_damaged_block_decodes_or_is_a_connection_error(capfd):
    @given(FIELDS, st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6), st.integers(0, 10_000))
    def check(fields, changes, keep):
        block = bytearray(Encoder().encode([(name, value, False) for name, value in fields]))
        for place, byte in changes:
            if block:
                block[place % len(block)] = byte
        try:
            HeaderDecoder(2**16).decode(bytes(block[: keep % (len(block) + 1)]))
        except H2ConnectionError as error:
            code = error.code
        else:
            code = None
        assert code in (None, ErrorCode.COMPRESSION_ERROR, ErrorCode.ENHANCE_YOUR_CALM)

    check()
    assert capfd.readouterr().err == "", "the library panicked"


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (b"\x00", "a field does not end"),
        (b"\x40\x03ab", "a field does not end"),
        (b"\x00\x01a\x7f\xff\xff\xff\xff\xff\x01", "a field does not end"),
        (b"\x82\x20", "the table is resized after a field"),
        (b"\x00\x01a\x81\x18", "a Huffman code is padded with other bits than ones"),
        (b"\x80", "decoder failure: InvalidIndex"),
    ],
)
def test_malformed_block_is_a_compression_error(block, why):
    with pytest.raises(H2ConnectionError) as caught:
        HeaderDecoder(2**16).decode(block)
    assert (caught.value.code, caught.value.reason) == (ErrorCode.COMPRESSION_ERROR, why)


def test_decompression_bomb_is_refused():
    encoder, decoder = Encoder(), HeaderDecoder(8192)
    decoder.decode(encoder.encode([(b"x", b"v" * 3000, False)]))
    bomb = b"\xbe" * 100
    with pytest.raises(H2ConnectionError) as caught:
        decoder.decode(bomb)
    assert (caught.value.code, caught.value.counter) == (ErrorCode.ENHANCE_YOUR_CALM, "header_floods")
