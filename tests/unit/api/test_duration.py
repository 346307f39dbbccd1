"""Go durations as parameters."""

from __future__ import annotations

import jsonschema
import pytest
from pydantic import ValidationError

from endpick.api import Duration, Parameters, parse_duration
from endpick.api.plugin import duration_text


class Timed(Parameters):
    interval: Duration = 0.05


GOOD = {
    "0": 0,
    "50ms": 0.05,
    "1.5s": 1.5,
    "1m30s": 90,
    "2h45m": 9900,
    ".5s": 0.5,
    "5.s": 5,
    "-1s": -1,
    "+3us": 3e-6,
    "7µs": 7e-6,
    "7μs": 7e-6,
    "1ns": 1e-9,
}
BAD = ["", "5", "1 s", "s", "1d", "1e3s", "1s 2m", "--1s", ".s", "1_0s", "\uff11s", "50ms\n", "1h" * 3 + "x"]


@pytest.mark.parametrize(("text", "seconds"), GOOD.items())
def test_a_duration_is_read_as_go_reads_it_and_the_schema_agrees(text, seconds):
    assert Timed(interval=text).interval == pytest.approx(seconds)
    jsonschema.validate({"interval": text}, Timed.model_json_schema())


@pytest.mark.parametrize("text", BAD)
def test_what_go_refuses_is_refused(text):
    with pytest.raises(ValidationError, match="is not a duration such as 50ms or 1m30s"):
        Timed(interval=text)


@pytest.mark.parametrize("value", [*[text for text in BAD if text != "50ms\n"], 5, None])
def test_the_schema_refuses_it_as_well(value):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"interval": value}, Timed.model_json_schema())


def test_a_duration_go_cannot_hold_is_refused():
    with pytest.raises(ValueError, match="292 years"):
        parse_duration("2562048h")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (0.05, "50ms"), (1.0, "1s"), (2.5, "2.5s"), (90.0, "90s"), (300.0, "5m"), (7200.0, "2h"), (-0.5, "-500ms")],
)
def test_text_of_a_duration_is_short_and_reads_back(seconds, text):
    assert duration_text(seconds) == text
    assert parse_duration(text) == seconds
