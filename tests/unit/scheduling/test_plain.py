"""Records as programs get them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from endpick.scheduling.trace import to_json


@dataclass(frozen=True, slots=True)
class Inner:
    extension_point: str
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Outer:
    fairness_id: str
    inner: tuple[Inner, ...]
    headers: dict[str, str]
    status: int | None = None


def test_fields_are_in_camel_case_and_keys_of_mappings_as_they_are():
    record = Outer("team", (Inner("Scorer", (0.5,)),), {"x-my_header": "a"})

    assert to_json(record) == {
        "fairnessId": "team",
        "inner": [{"extensionPoint": "Scorer", "scores": [0.5]}],
        "headers": {"x-my_header": "a"},
        "status": None,
    }


def test_what_json_does_not_have_is_null():
    document = to_json(Inner("Scorer", (math.nan, math.inf, -math.inf, 0.0)))

    assert json.loads(json.dumps(document, allow_nan=False)) == {"extensionPoint": "Scorer", "scores": [None, None, None, 0.0]}


def test_what_lies_deeper_than_any_record_is_cut_off_and_not_followed():
    nested: object = "the end"
    for _ in range(300_000):
        nested = [nested]
    document, depth = to_json(nested), 0
    while isinstance(document, list):
        (document,) = document
        depth += 1
    assert (document, depth) == ("…", 64)
    while isinstance(nested, list):  # or Python itself would follow it when it is let go
        nested = nested.pop()
