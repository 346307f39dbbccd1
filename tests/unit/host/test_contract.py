"""What a class must be to serve as a plugin."""

from __future__ import annotations

import types
from abc import ABC
from pathlib import Path

import pytest

from endpick.api import DataCollector, DataKey, DataSource, Filter, Parameters, Plugin, PollingSource, ResponseObserver, Scorer
from endpick.diagnostics import Code
from endpick.host.discovery import Candidate
from endpick.host.loader import _current_name
from plugin_classes import load_class, scorer_class


def codes(plugin):
    loading = load_class(plugin)
    assert (loading.loaded is None) == bool(loading.diagnostics)
    return [diagnostic.code for diagnostic in loading.diagnostics]


def test_a_sound_class_passes():
    assert codes(scorer_class()) == []


def test_anything_but_a_plugin_class_is_named_for_what_it_is():
    for value, found in [
        (scorer_class, "an object of type function"),
        (int, "the class int"),
        (types.ModuleType("m"), "the module m"),
        (None, "an object of type NoneType"),
    ]:
        (fault,) = load_class(value).diagnostics

        assert fault.code is Code.E0309
        assert f"leads to {found}, not to a plugin class" in fault.message


def test_a_plugin_of_no_kind_is_refused():
    class NoKind(Plugin):
        pass

    assert codes(NoKind) == [Code.E0310]


def test_a_data_source_says_how_it_delivers():
    class Vague(DataSource[Parameters, str]):
        pass

    class Polling(Vague, PollingSource):
        async def poll(self, endpoint):
            return ""

    (fault,) = load_class(Vague).diagnostics

    assert fault.code is Code.E0310
    assert fault.message.startswith("the data source ")
    assert fault.message.endswith("Vague in acme 1.0 does not say how it delivers")
    assert "PollingSource, StreamSource, PollingPoolSource, PoolSource or EndpointEventSource" in fault.notes[0]
    assert codes(Polling) == []


def test_every_method_left_abstract_is_named():
    class Nothing(Scorer, Filter, ABC):
        pass

    (fault,) = load_class(Nothing).diagnostics

    assert fault.code is Code.E0311
    assert fault.message.endswith("does not implement `filter`, `score`")


def test_each_wrong_fact_has_its_code():
    for facts, code, says in [
        ({"parameters": dict}, Code.E0318, "the parameters of 'acme.scorer' in acme 1.0 are <class 'dict'>, not a subclass"),
        ({"consumes": [DataKey("k", float)]}, Code.E0318, "`consumes` of 'acme.scorer' in acme 1.0 is not a tuple of data keys"),
        ({"consumes_optional": ("k",)}, Code.E0318, "`consumes_optional` of"),
        ({"produces": DataKey("k", float)}, Code.E0318, "`produces` of"),
        ({"stability": "shaky"}, Code.E0318, "`stability` of 'acme.scorer' in acme 1.0 is 'shaky', not a Stability"),
        ({"aliases": "acme.old"}, Code.E0318, "`aliases` of 'acme.scorer' in acme 1.0 is not a tuple of names"),
        (
            {"consume": (DataKey("k", float),)},
            Code.E0318,
            "`consume` of 'acme.scorer' in acme 1.0 is read by no part of endpick: did you mean 'consumes'?",
        ),
        ({"categroy": None}, Code.E0318, "did you mean 'category'?"),
    ]:
        (fault,) = load_class(scorer_class(**facts)).diagnostics

        assert fault.code is code
        assert says in fault.message


def test_a_subclass_inherits_every_fact():
    assert codes(type("Child", (scorer_class(consumes=(DataKey("k", float),)),), {})) == []


def test_a_misspelt_method_is_refused_and_named():
    class Watcher(ResponseObserver):
        def first_chunck(self, request, state):
            return None

    (fault,) = load_class(Watcher).diagnostics

    assert fault.code is Code.E0313
    assert "`first_chunck` of the plugin class" in fault.message
    assert "is called by no part of endpick: did you mean 'first_chunk'?" in fault.message


def test_methods_of_its_own_are_a_plugins_business():
    class Busy(ResponseObserver):
        def response_ended(self, request, end, state):
            return self.first_chunks()

        def first_chunks(self):
            return None

        def starter(self, one, two, three):
            return one

        def state(self):
            return self.status()

        def status(self):
            return self.step()

        def step(self):
            return None

        async def restart(self):
            return None

    assert codes(Busy) == []


def test_attributes_of_its_own_are_a_plugins_business():
    assert codes(scorer_class(kinds=("cold", "hot"), source="a file", schema={}, parameter=1)) == []


def test_an_attribute_of_another_kind_is_not_known():
    assert codes(scorer_class(default_sources=("acme.source",))) == []


def test_misspelt_facts_of_a_kind_are_known_to_that_kind():
    class Collector(DataCollector):
        default_sources = ("acme.source",)

        def collect(self, payload, writer):
            return None

    (fault,) = load_class(Collector).diagnostics

    assert fault.code is Code.E0318
    assert "did you mean 'default_source'?" in fault.message


def test_a_slip_of_the_pen_is_told_from_a_name_of_its_own():
    for written, meant in [
        ("alias", "aliases"),
        ("produce", "produces"),
        ("consumes_optionnal", "consumes_optional"),
        ("stabilty", "stability"),
    ]:
        (fault,) = load_class(scorer_class(**{written: ()})).diagnostics

        assert f"did you mean '{meant}'?" in fault.message


@pytest.mark.parametrize("name", ["older", "acme.scorer"])
def test_a_former_name_needs_an_entry_point_with_the_current_one(name, make_distribution):
    path = make_distribution("acme-old", {name: "acme_old:Scorer"})
    metadata = next(Path(path).glob("*.dist-info"))
    candidate = Candidate(name, 1, "acme-old", "1.0", "acme_old:Scorer", str(metadata))

    assert _current_name(candidate, scorer_class(aliases=("older",)), ()) == (None if name == "older" else name)


def test_independent_faults_are_told_together():
    class Many(Scorer):
        aliases = "older"

        async def score(self, request):
            return None

    assert codes(Many) == [Code.E0318, Code.E0313, Code.E0313]
