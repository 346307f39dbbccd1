"""What the host reads of a plugin beside calling it: nonsense is refused when it is built, and never worked with."""

from __future__ import annotations

import math

import pytest

from endpick.api import (
    DataCollector,
    DataProducer,
    EndpointDiscovery,
    Parameters,
    Parser,
    Picker,
    PluginContext,
    PollingPoolSource,
    PollingSource,
    ProfileHandler,
    Scorer,
)
from endpick.diagnostics import Code, Diagnostic
from endpick.host.attributes import ATTRIBUTES, poll_interval_of, poll_timeout_of, pool_interval_of, tolerated_age_of, wrong_in
from endpick.host.instance import Instance, build
from plugin_classes import load_class, scorer_class


class OddNumber(float):
    def __le__(self, other):
        raise SystemExit("do not look")

    __ge__ = __lt__ = __gt__ = __eq__ = __le__
    __hash__ = None


NONSENSE = ("x", math.nan, math.inf, -1.0, 10**400, OddNumber(1.0), object(), [1.0], b"x", True)
FLAGS = ("repeats_payload", "publishes_objectives", "reads_usage", "uses_scores")
SUBJECTS = {
    "tolerated_age_seconds": Scorer,
    "interval_seconds": PollingSource,
    "timeout_seconds": PollingSource,
    "repeats_payload": PollingSource,
    "default_collectors": PollingSource,
    "default_source": DataCollector,
    "publishes_objectives": EndpointDiscovery,
    "claims": Parser,
    "reads_usage": Parser,
    "usage_mark": Parser,
    "uses_scores": Picker,
    "most_profiles": ProfileHandler,
}


def one(kind, **attributes):
    """An instance of a kind with these attributes of its own."""
    plugin = type("Plain", (kind,), {})("one", Parameters(), PluginContext())
    for name, value in attributes.items():
        setattr(plugin, name, value)
    return plugin


def test_each_attribute_has_its_turn_here():
    assert {attribute.name for attribute in ATTRIBUTES} == SUBJECTS.keys()


@pytest.mark.parametrize("name", SUBJECTS)
def test_defaults_are_fine(name):
    assert wrong_in(one(SUBJECTS[name])) is None


@pytest.mark.parametrize("value", NONSENSE, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", SUBJECTS)
def test_nonsense_is_told_in_a_sentence(name, value):
    fits = (value is True and name in FLAGS) or (type(value), name) in ((bytes, "usage_mark"), (str, "default_source"))
    wrong = wrong_in(one(SUBJECTS[name], **{name: value}))

    assert (wrong is None) == fits
    assert wrong is None or wrong.startswith(f"its `{name}` is ")


@pytest.mark.parametrize("kind", [PollingPoolSource, DataProducer])
def test_a_time_limit_of_nothing_is_nonsense(kind):
    assert wrong_in(one(kind, timeout_seconds=0)) == "its `timeout_seconds` is of type int, not a number of seconds above 0"


def built(plugin):
    return build(load_class(plugin).loaded, "inst", Parameters(), None, PluginContext())


def test_an_instance_with_nonsense_is_refused_and_its_author_named():
    class Hasty(scorer_class()):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.tolerated_age_seconds = "soon"

    refused = built(Hasty)

    assert isinstance(refused, Diagnostic)
    assert refused.code is Code.E0403
    assert "its `tolerated_age_seconds` is 'soon', not a number of seconds or None" in refused.message
    assert "fault of acme" in refused.help


def test_an_attribute_that_raises_refuses_the_instance():
    def age(_self):
        raise SystemExit("not today")

    refused = built(scorer_class(tolerated_age_seconds=property(age)))

    assert isinstance(refused, Diagnostic)
    assert "SystemExit: not today" in refused.message


def test_a_class_with_nonsense_is_refused_before_anything_is_built():
    (fault,) = load_class(scorer_class(tolerated_age_seconds="soon")).diagnostics

    assert fault.code is Code.E0318
    assert fault.message == ("`tolerated_age_seconds` of 'acme.scorer' in acme 1.0 is 'soon', not a number of seconds or None")


def test_what_turns_to_nonsense_later_is_read_as_the_default():
    assert isinstance(built(scorer_class()), Instance)
    source = one(PollingSource, interval_seconds=math.nan, timeout_seconds="x")

    assert (poll_interval_of(source), poll_timeout_of(source)) == (None, 1.0)
    assert pool_interval_of(one(PollingPoolSource, interval_seconds=10**400)) == 10.0
    assert tolerated_age_of(one(Scorer, tolerated_age_seconds=OddNumber(1.0))) is None
