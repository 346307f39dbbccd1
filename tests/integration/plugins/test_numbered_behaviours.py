"""The forty-six behaviours that a plugin host owes its users are numbered in the names of the tests; none may go missing."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[2]


def test_every_number_is_held_by_a_test():
    named = re.compile(r"^(?:async )?def test_behaviour_(\d\d)_", re.MULTILINE)
    numbers = {int(number) for file in TESTS.rglob("test_*.py") for number in named.findall(file.read_text(encoding="utf-8"))}

    assert numbers == set(range(1, 47))
