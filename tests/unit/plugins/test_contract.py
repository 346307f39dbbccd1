"""What a class must be to serve as a plugin."""

from __future__ import annotations

import types
from abc import ABC

import pytest

from endpick.api import DataKey, DataSource, Filter, Parameters, Plugin, PluginMeta, PollingSource, Scorer
from endpick.diagnostics import Code
from plugin_classes import load_class, scorer_class


def codes(plugin):
    loading = load_class(plugin)
    assert (loading.loaded is None) == bool(loading.diagnostics)
    return [diagnostic.code for diagnostic in loading.diagnostics]


def test_a_sound_class_passes():
    assert codes(scorer_class()) == []


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (scorer_class, "an object of type function"),
        (int, "the class int"),
        (types.ModuleType("m"), "the module m"),
        (None, "an object of type NoneType"),
    ],
)
def test_anything_but_a_plugin_class_is_named_for_what_it_is(value, found):
    (fault,) = load_class(value).diagnostics

    assert fault.code is Code.E0309
    assert f"leads to {found}, not to a plugin class" in fault.message


def test_a_plugin_of_no_kind_is_refused():
    class NoKind(Plugin):
        meta = PluginMeta(type="acme.scorer", api=">=1.0")

    assert codes(NoKind) == [Code.E0310]


def test_a_data_source_says_how_it_delivers():
    class Vague(DataSource):
        meta = PluginMeta(type="acme.scorer", api=">=1.0", payload=str)

    class Polling(Vague, PollingSource):
        meta = Vague.meta

        async def poll(self, endpoint):
            return ""

    (fault,) = load_class(Vague).diagnostics

    assert fault.code is Code.E0310
    assert fault.message.startswith("the data source ")
    assert fault.message.endswith("Vague in acme 1.0 does not say how it delivers")
    assert "PollingSource, StreamSource or PoolSource" in fault.notes[0]
    assert codes(Polling) == []


def test_every_method_left_abstract_is_named():
    class Nothing(Scorer, Filter, ABC):
        meta = PluginMeta(type="acme.scorer", api=">=1.0")

    (fault,) = load_class(Nothing).diagnostics

    assert fault.code is Code.E0311
    assert fault.message.endswith("does not implement `filter`, `score`")


@pytest.mark.parametrize(
    ("facts", "code", "says"),
    [
        ({"api": "nonsense"}, Code.E0318, "is not a version range: 'nonsense'"),
        ({"api": 1}, Code.E0318, "is not a version range: 1"),
        ({"parameters": dict}, Code.E0318, "the `meta.parameters` of 'acme.scorer' in acme 1.0 is not a subclass"),
        ({"parameters": Parameters()}, Code.E0318, "the `meta.parameters` of"),
        ({"consumes": [DataKey("k", float)]}, Code.E0318, "the `meta.consumes` of"),
        ({"consumes_optional": ("k",)}, Code.E0318, "the `meta.consumes_optional` of"),
        ({"payload": "str"}, Code.E0318, "the `meta.payload` of 'acme.scorer' in acme 1.0 is not a class"),
        ({"produces": DataKey("k", float)}, Code.E0318, "the `meta.produces` of"),
        ({"api": ">=1.1"}, Code.E0306, "needs plugin API >=1.1; this host provides 1.0"),
        ({"api": "<1"}, Code.E0306, "needs plugin API <1"),
        ({"type": "acme.other"}, Code.E0312, "calls itself 'acme.other'"),
    ],
)
def test_each_wrong_fact_has_its_code(facts, code, says):
    (fault,) = load_class(scorer_class(**facts)).diagnostics

    assert fault.code is code
    assert says in fault.message


@pytest.mark.parametrize("api", [">=1.0,<2", "", "~=1.0", "==1.*", ">=0.9"])
def test_a_range_that_contains_this_api_passes(api):
    assert codes(scorer_class(api=api)) == []


def test_a_subclass_without_its_own_meta_is_told_so():
    (fault,) = load_class(type("Child", (scorer_class(type="acme.parent"),), {})).diagnostics

    assert fault.code is Code.E0312
    assert fault.notes == ("Child inherits `meta`; a subclass needs its own",)


def test_a_meta_of_another_class_is_shown():
    class Odd(scorer_class()):
        meta = "acme.scorer"

    (fault,) = load_class(Odd).diagnostics

    assert fault.code is Code.E0318
    assert "has a `meta` that is no PluginMeta but 'acme.scorer'" in fault.message


def test_independent_faults_are_told_together():
    class Many(Scorer):
        meta = PluginMeta(type="acme.other", api="<1")

        async def score(self, request):
            return None

    assert codes(Many) == [Code.E0306, Code.E0312, Code.E0313, Code.E0313]
