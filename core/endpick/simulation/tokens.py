"""The simulator's tokenizer: four bytes are one token, so that equal text prefixes are equal token prefixes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random

import xxhash

BYTES_PER_TOKEN = 4

_WORDS = ("the", "sun", "and", "sea", "are", "old", "but", "one", "can", "see", "how", "few", "men", "get")
"""Three letters and a space are one token."""


def padded(text: str) -> bytes:
    """The text in whole tokens, so that what follows starts on a token boundary whatever came before."""
    encoded = text.encode()
    return encoded + b" " * (-len(encoded) % BYTES_PER_TOKEN)


def count_tokens(content: bytes) -> int:
    """Tokens of a padded byte string."""
    return len(content) // BYTES_PER_TOKEN


def answer_text(seed: int, tokens: int) -> str:
    """An answer of exactly `tokens` tokens; the same seed always begins the same way."""
    return " ".join(Random(seed).choices(_WORDS, k=tokens)) + " " if tokens else ""  # noqa: S311 - repeatable by design


def split_tokens(text: str) -> list[str]:
    """The text of each token of an `answer_text`."""
    return [text[start : start + BYTES_PER_TOKEN] for start in range(0, len(text), BYTES_PER_TOKEN)]


def chained_hashes(content: bytes, block_size: int, salt: str = "") -> tuple[int, ...]:
    """Hash of each full block of `block_size` tokens with all that comes before it; `salt` keeps adapters apart."""
    width = block_size * BYTES_PER_TOKEN
    blocks = (content[start : start + width] for start in range(0, len(content) - width + 1, width))
    return tuple(_chain(blocks, xxhash.xxh3_64_intdigest(salt.encode())))


def _chain(blocks: Iterable[bytes], parent: int) -> Iterator[int]:
    for block in blocks:
        parent = xxhash.xxh3_64_intdigest(block, parent)
        yield parent
