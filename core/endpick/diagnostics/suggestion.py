"""Which of the words somebody may have meant."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

_MIN_SIMILARITY = 0.7
_MIN_PART = 4

# Letters of other scripts that are drawn like an ASCII letter in common fonts (a part of Unicode's confusables.txt).
_LOOK_ALIKES = str.maketrans(
    "аеорсухіјѕԁһԛԝАВЕКМНОРСТХІЈЅαοενρτυχικΑΒΕΖΗΙΚΜΝΟΡΤΥΧ‐‑‒–—−․⁃ıɑɡℓ",  # noqa: RUF001 - the ambiguity is the point
    "aeopcyxijsdhqwABEKMHOPCTXIJSaoevptuxikABEZHIKMNOPTYX------.-iagl",
)


def suggest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that is closest to `word`, or None when none is close: a wild guess is worse than no help."""
    known = sorted(set(candidates) - {word})
    plain = ascii_look_alike(word)
    if plain in known:
        return plain
    folded: dict[str, str] = {}
    for candidate in known:
        folded.setdefault(_fold(candidate), candidate)
    matches = get_close_matches(_fold(plain), folded, n=1, cutoff=_MIN_SIMILARITY)
    return folded[matches[0]] if matches else _only_longer_form(_fold(plain), folded)


def did_you_mean(word: str, candidates: Iterable[str]) -> str | None:
    """A help line with the closest candidate, or None."""
    suggestion = suggest(word, candidates)
    return None if suggestion is None else f"did you mean '{suggestion}'?"


def ascii_look_alike(word: str) -> str:
    """The word as a reader sees it: letters that look like ASCII letters become those letters, invisible ones vanish."""
    compatible = unicodedata.normalize("NFKC", word)
    visible = "".join(character for character in compatible if unicodedata.category(character) != "Cf")
    return visible.translate(_LOOK_ALIKES)


def _only_longer_form(word: str, folded: Mapping[str, str]) -> str | None:
    """The one candidate that begins or ends with the word: `data` for `dataLayer`, `profiles` for `schedulingProfiles`."""
    longer = [form for form in folded if len(word) >= _MIN_PART and (form.startswith(word) or form.endswith(word))]
    return folded[longer[0]] if len(longer) == 1 else None


def _fold(word: str) -> str:
    return word.casefold().replace("_", "").replace("-", "")
