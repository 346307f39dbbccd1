"""Records are made quickly, and are what `dataclass` would have made: frozen, comparable, with the same signature."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace

import pytest

from endpick.api import InferenceRequest, ParsedRequest, ResponseEnd, ResponseHead, SchedulingResult, TerminationCause, Usage
from endpick.api.records import quickly_checked, quickly_made
from endpick.api.request import NO_PROMPT
from endpick.api.scheduling import ProfileRunResult, ScoredEndpoints

RECORDS = (InferenceRequest, ParsedRequest, ProfileRunResult, ResponseEnd, ResponseHead, SchedulingResult, ScoredEndpoints, Usage)


@dataclass(frozen=True, slots=True)
class Slow:
    name: str
    tags: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    count: int = 3

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"a count of {self.count}")


@quickly_made
@dataclass(frozen=True, slots=True)
class Quick:
    name: str
    tags: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    count: int = 3

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"a count of {self.count}")


_LARGEST = 9


@quickly_checked("type(name) is str and not tags and 0 <= count <= _LARGEST")
@dataclass(frozen=True, slots=True)
class Checked:
    name: str
    tags: dict[str, str] = field(default_factory=dict)
    count: int = 3

    def __post_init__(self) -> None:
        raise ValueError(f"{self.name} {self.tags} {self.count} is unusual")


def values(record) -> tuple[object, ...]:
    return tuple(getattr(record, each.name) for each in fields(record))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(("a",), {}), (("a", {"b": "c"}), {}), (("a",), {"count": 7}), ((), {"notes": ["n"], "name": "a"}), (("a", {}, [], 0), {})],
)
def test_a_record_gets_the_values_that_dataclass_would_give_it(arguments, named):
    assert values(Quick(*arguments, **named)) == values(Slow(*arguments, **named))
    assert type(Quick(*arguments, **named)) is Quick


def test_what_a_factory_makes_is_each_record_s_own():
    assert Quick("a").tags is not Quick("a").tags


def test_a_record_is_frozen_once_it_is_made():
    record = Quick("a")
    with pytest.raises(FrozenInstanceError):
        record.name = "b"
    with pytest.raises(FrozenInstanceError):
        del record.name
    assert record == Quick("a")


@pytest.mark.parametrize("arguments", [(), ("a", {}, [], 1, 2)])
def test_wrong_arguments_are_refused(arguments):
    with pytest.raises(TypeError, match="__init__"):
        Quick(*arguments)


def test_what_post_init_refuses_is_not_made():
    with pytest.raises(ValueError, match="a count of -1"):
        Quick("a", count=-1)


def test_usual_records_are_not_checked_and_all_others_are():
    assert values(Checked("a", count=9)) == ("a", {}, 9)
    for unusual in (("a", {"b": "c"}), ("a", {}, -1), ("a", {}, _LARGEST + 1), (b"a",)):
        with pytest.raises(ValueError, match="is unusual"):
            Checked(*unusual)


HOSTILE_TEXT = type("Text", (str,), {})("x")


@pytest.mark.parametrize(
    ("record", "usual", "wrong"),
    [
        (Usage, (1, 2, None), (1.0, "2", 3.0)),
        (ParsedRequest, ("m", NO_PROMPT, False, None, "s"), (1, None, 0, 2.5, b"")),
        (SchedulingResult, ("p", {}, ("a:1",), {}, "", ()), (1, [], ["a:1"], [], None, [])),
        (SchedulingResult, ("p", {}, ("a:1",), {}, "", ()), (1, [], (1,), {1: ""}, None, (1,))),
        (SchedulingResult, ("p", {}, ("a:1", "b:1"), {"h": "v"}, "", ("r",)), (1, [], ("a:1", 1), {"h": 1}, None, ("r", 1))),
    ],
)
def test_each_wrong_field_of_what_plugins_make_is_refused(record, usual, wrong):
    assert tuple(getattr(record(*usual), each.name) for each in fields(record))[: len(usual)] == usual
    for position, value in enumerate(wrong):
        with pytest.raises(TypeError):
            record(*usual[:position], value, *usual[position + 1 :])


def test_a_text_of_a_class_of_its_own_becomes_a_plain_one():
    parsed = ParsedRequest(HOSTILE_TEXT, cache_salt=HOSTILE_TEXT)
    assert type(parsed.model) is type(parsed.cache_salt) is str


def test_a_record_is_copied_replaced_and_pickled():
    usage = Usage(1, 2, 3)
    assert replace(usage, cached_tokens=None) == Usage(1, 2)
    assert copy.deepcopy(usage) == pickle.loads(pickle.dumps(usage)) == usage  # the same bytes
    with pytest.raises(FrozenInstanceError):
        copy.copy(usage).prompt_tokens = 7


def test_a_subclass_of_a_record_stays_a_subclass():
    @dataclass(frozen=True)
    class Noted(Usage):
        note: str = ""

    class Bare(Usage):
        __slots__ = ()

    assert (type(Noted(1, 2, note="n")), Noted(1, 2, note="n").note) == (Noted, "n")
    assert (type(Bare(1)), Bare(1).prompt_tokens) == (Bare, 1)


@pytest.mark.parametrize("record", RECORDS)
def test_the_signature_is_that_of_the_fields(record):
    assert list(inspect.signature(record).parameters) == [each.name for each in fields(record)]


def test_each_record_of_a_request_is_frozen():
    end = ResponseEnd(TerminationCause.NATURAL, 200, None, 3, 0.5, None)
    for record in (InferenceRequest("a"), ParsedRequest("m"), ProfileRunResult("p", None), end, ResponseHead(200, {}, None, None)):
        with pytest.raises(FrozenInstanceError):
            setattr(record, fields(record)[0].name, "other")
