"""A wrong duration is reported alike in parameters, fields and flags."""

from __future__ import annotations

import click
import pytest

from endpick.api import Duration, Parameters
from endpick.cli.options import DURATION
from endpick.config import load_config
from endpick.host.parameters import check_parameters
from plugin_classes import load_class, scorer_class

WANTED = "a duration such as 50ms or 1m30s"
FIELD = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nfeatureGates: [flowControl]\nflowControl: {defaultRequestTTL: "
VALUES = [  # as YAML, as Python, in the words of a parameter and of a field, advice
    ("fast", "fast", "'fast'", "the text 'fast'", None),
    ("'20'", "20", "'20'", "the text '20'", None),
    ("1 minute", "1 minute", "'1 minute'", "the text '1 minute'", None),
    ("1m 30s", "1m 30s", "'1m 30s'", "the text '1m 30s'", None),
    ("20", 20, "20", "the number 20", "write '20s' if seconds are meant"),
    ("0.5", 0.5, "0.5", "the number 0.5", "write '0.5s' if seconds are meant"),
    ("true", True, "true", "true", None),
    ("[1s]", ["1s"], '["1s"]', "a list", None),
]


class Timed(Parameters):
    plain: Duration = 1.0
    optional: Duration | None = None


@pytest.mark.parametrize(("written", "value", "in_a_parameter", "in_a_field", "advice"), VALUES)
def test_wrong_duration_is_worded_alike(written, value, in_a_parameter, in_a_field, advice):
    loaded = load_class(scorer_class(parameters=Timed), "acme.timed").loaded

    found = check_parameters(loaded, {"plain": value, "optional": value})
    (field,) = load_config(text=f"{FIELD}{written}}}\n").diagnostics

    assert [(one.message, one.help) for one in found] == [
        (f"parameter 'plain' of acme.timed must be {WANTED}, not {in_a_parameter}", advice),
        (
            f"parameter 'optional' of acme.timed must be {WANTED}{'' if isinstance(value, str) else ' or null'}, not {in_a_parameter}",
            advice,
        ),
    ]
    assert (field.message, field.help) == (f"flowControl.defaultRequestTTL must be {WANTED}, not {in_a_field}", advice)
    if isinstance(value, str):
        with pytest.raises(click.BadParameter) as failure:
            DURATION.convert(value, None, None)
        assert failure.value.message == f"'{value}' is not {WANTED}"
