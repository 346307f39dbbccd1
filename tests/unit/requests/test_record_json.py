"""Decision records as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

from endpick.requests.record import to_json


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


def test_fields_become_camel_case_and_mapping_keys_stay():
    record = Outer("team", (Inner("Scorer", (0.5,)),), {"x-my_header": "a"})

    assert to_json(record) == {
        "fairnessId": "team",
        "inner": [{"extensionPoint": "Scorer", "scores": [0.5]}],
        "headers": {"x-my_header": "a"},
        "status": None,
    }


def test_nan_and_infinity_become_null():
    document = to_json(Inner("Scorer", (math.nan, math.inf, -math.inf, 0.0)))

    assert json.loads(json.dumps(document, allow_nan=False)) == {"extensionPoint": "Scorer", "scores": [None, None, None, 0.0]}
