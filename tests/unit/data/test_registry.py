"""What a discovery reports is looked at where it reports it: nonsense is its own fault, and no other plugin meets it."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from endpick.api import Endpoint, ModelRewrite, ModelTarget
from endpick.data.registry import Registry
from endpick.data.table import EndpointTable
from endpick.installation import request_path

A, B = Endpoint("a", "10.0.0.1", 80), Endpoint("b", "10.0.0.2", 80)


def odd(*_arguments):
    raise SystemExit("do not look")


class OddText(str):
    __str__ = __len__ = __eq__ = odd
    __hash__ = str.__hash__


class Unreadable(Endpoint):
    name = property(odd)


class Talkative(Endpoint):
    """With an answer of its own."""

    @property
    def address(self):
        return "elsewhere:1"

    address = address.setter(lambda *_: None)


def spoilt(**fields):
    endpoint = Endpoint("c", "10.0.0.3", 80)
    for name, value in fields.items():
        object.__setattr__(endpoint, name, value)
    return endpoint


def rewrite(target) -> list:
    return [ModelRewrite((), (target,))]


WRONG = {
    "no endpoint": lambda registry: registry.upsert(None),
    "a text": lambda registry: registry.replace_all(["a"]),
    "no list": lambda registry: registry.replace_all(5),
    "one of two": lambda registry: registry.replace_all([A, None]),
    "the same without an end": lambda registry: registry.replace_all(itertools.repeat(A)),
    "half an endpoint": lambda registry: registry.upsert(object.__new__(Endpoint)),
    "an endpoint that cannot be read": lambda registry: registry.upsert(object.__new__(Unreadable)),
    "a name that is none": lambda registry: registry.upsert(Endpoint(5, "10.0.0.3", 80)),
    "no name": lambda registry: registry.upsert(Endpoint("", "10.0.0.3", 80)),
    "no host": lambda registry: registry.upsert(spoilt(host=None)),
    "a host with a line end": lambda registry: registry.upsert(Endpoint("c", "10.0.0.3\r\nx-evil: 1", 80)),
    "a host that is two": lambda registry: registry.upsert(Endpoint("c", "10.0.0.3,10.0.0.4", 80)),
    "a host of kilobytes": lambda registry: registry.upsert(Endpoint("c", "h" * 301, 80)),
    "a host that is half a character": lambda registry: registry.upsert(Endpoint("c", "fe80::1%\ud800", 80)),
    "a name that is half a character": lambda registry: registry.upsert(Endpoint("\ud800", "10.0.0.3", 80)),
    "a metrics address with a blank": lambda registry: registry.upsert(Endpoint("c", "10.0.0.3", 80, metrics_address="a b")),
    "a port that is a text": lambda registry: registry.upsert(Endpoint("c", "10.0.0.3", "80")),
    "a port that is none": lambda registry: registry.upsert(Endpoint("c", "10.0.0.3", 10**400)),
    "no labels": lambda registry: registry.upsert(spoilt(labels=None)),
    "labels that are numbers": lambda registry: registry.upsert(Endpoint("c", "10.0.0.3", 80, {"a": 1})),
    "a name to remove that is none": lambda registry: registry.remove(None),
    "a priority that is a text": lambda registry: registry.set_objectives({"idle": "low"}),
    "a priority without bounds": lambda registry: registry.set_objectives({"idle": -(10**400)}),
    "objectives that are none": lambda registry: registry.set_objectives(None),
    "a rewrite that is none": lambda registry: registry.set_rewrites([5]),
    "a target that is none": lambda registry: registry.set_rewrites(rewrite(None)),
    "a weight that is a text": lambda registry: registry.set_rewrites(rewrite(ModelTarget("x", "1"))),
    "a weight below nothing": lambda registry: registry.set_rewrites(rewrite(ModelTarget("x", -1))),
    "a model that is a number": lambda registry: registry.set_rewrites(rewrite(ModelTarget(5, 1))),
    "a reason that is a number": lambda registry: registry.stand_by(5),
}


@pytest.fixture
def table() -> EndpointTable:
    table = EndpointTable(lambda: 1.0)
    table.replace_all([A, B])
    table.set_objectives({"idle": -1})
    table.on_stand_by.append(lambda reason: pytest.fail(f"told to stand by: {reason!r}"))
    return table


@pytest.mark.parametrize("report", WRONG)
def test_nonsense_is_raised_where_it_is_reported_and_changes_nothing(table, report):
    before = table.generation
    with pytest.raises((TypeError, ValueError, AttributeError, SystemExit)):
        WRONG[report](Registry(table))

    assert table.generation is before
    assert table.rules.objectives == {"idle": -1}
    assert table.rules.rewrites == {}


REPORTS = {
    "upsert": lambda registry: registry.upsert(Endpoint("c", "10.0.0.3", 80)),
    "remove": lambda registry: registry.remove("a"),
    "replace_all": lambda registry: registry.replace_all([B]),
    "objectives": lambda registry: registry.set_objectives({"busy": 1}),
    "rewrites": lambda registry: registry.set_rewrites([ModelRewrite(("m",), (ModelTarget("x", 1),))]),
    "ready": Registry.ready,
    "stand_by": lambda registry: registry.stand_by("elsewhere"),
}


@pytest.mark.parametrize("report", REPORTS)
def test_what_a_discovery_reports_from_another_thread_is_raised_there_and_changes_nothing(table, report):
    before, registry = table.generation, Registry(table)
    table.on_stand_by.append(odd)
    with ThreadPoolExecutor(1) as thread, pytest.raises(RuntimeError, match="from another one"):
        thread.submit(REPORTS[report], registry).result(10)

    assert table.generation is before
    assert table.rules.objectives == {"idle": -1}
    assert table.rules.rewrites == {}
    assert not table.is_ready.is_set()


def test_texts_and_numbers_of_a_class_of_their_own_become_plain(table):
    registry = Registry(table)
    labels = {OddText("role"): OddText("decode")}
    registry.upsert(spoilt(name=OddText("c"), host=OddText("10.0.0.3"), labels=labels, metrics_address=OddText("10.0.0.3:81")))
    registry.set_rewrites([ModelRewrite((OddText("m"),), (ModelTarget(OddText("x"), True),))])

    known = table.find("c")
    assert {type(each) for each in (known.name, known.host, known.address, known.metrics_address, *known.labels.values())} == {str}
    (target,) = table.rules.rewrites["m"]
    assert (type(target.model), type(target.weight)) == (str, int)


@pytest.mark.skipif(request_path() == "compiled", reason="an Endpoint that is compiled has no subclasses")
def test_an_endpoint_of_a_class_of_its_own_becomes_a_plain_one(table):
    Registry(table).upsert(Talkative("c", "10.0.0.3", 80))

    assert type(table.find("c")) is Endpoint
    assert table.find("c").address == "10.0.0.3:80"


def test_what_is_right_is_taken_as_it_is(table):
    c = Endpoint("c", "10.0.0.3", 80, {"role": "decode"})
    registry = Registry(table)
    registry.replace_all(iter([A, c]))
    assert table.generation.endpoints == (A, c)
    registry.remove("a")
    assert table.generation.endpoints == (c,)
    registry.ready()
    assert table.is_ready.is_set()


def test_one_that_is_closed_hears_nothing(table):
    registry, before = Registry(table), table.generation
    registry.close()
    registry.replace_all([])
    registry.upsert(Endpoint("c", "10.0.0.3", 80))
    registry.remove("a")
    registry.set_objectives({})
    registry.set_rewrites(rewrite(ModelTarget("x", 1)))
    registry.stand_by("another serves")
    registry.ready()

    assert table.generation is before
    assert table.rules.objectives == {"idle": -1}
    assert not table.is_ready.is_set()


def test_of_rules_those_that_were_looked_at_before_are_not_looked_at_again_and_a_changed_list_is(table):
    registry = Registry(table)

    class Models(list):
        looks = 0

        def __iter__(self):
            self.looks += 1
            return super().__iter__()

    targets = (ModelTarget("b", 1),)
    settled = [ModelRewrite((f"m{number}",), targets) for number in range(3)]
    models = Models(["x"])
    registry.set_rewrites([*settled, ModelRewrite(models, targets)])
    first = dict(table.rules.rewrites)
    assert list(first) == ["m0", "m1", "m2", "x"]
    known = registry._rules
    assert [rule for rule, _ in known.values()] == settled
    registry.set_rewrites([*settled, ModelRewrite(models, targets)])
    assert all(registry._rules[key] is pair for key, pair in known.items())
    assert models.looks == 2
    assert table.rules.rewrites == first
