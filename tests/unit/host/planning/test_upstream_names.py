"""Names that llm-d knows and endpick may not: hints, and the diagnostics that tell them from mistakes."""

from __future__ import annotations

import pytest

from endpick.cli.llm_d_flags import FLAGS
from endpick.config import load_config
from endpick.config.gates import DEFAULT_GATES
from endpick.config.model import EndpointPickerConfig
from endpick.config.shape import part_at
from endpick.config.upstream import AS_OF, State, find_name, upstream_names
from endpick.diagnostics import Code, Diagnostic, Span
from endpick.host.discovery import discover
from endpick.host.planning.builder import STRICT_BAND_SELECTION
from endpick.host.planning.planner import make_plan
from unit.host.planning.planned import plan


def checked(body: str) -> list[Diagnostic]:
    """Every error, with everything installed."""
    text = f"apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n{body}\n"
    return [one for one in make_plan(load_config(text=text, name="c.yaml"), discover()).diagnostics if one.is_error]


def check(body: str) -> list[tuple[str, str | None, str]]:
    return [(one.code.name, one.help, one.message) for one in checked(body)]


def test_a_missing_name_of_llm_d_has_a_place() -> None:
    assert plan("plugins: [{type: thunder-agent}]").found == [("E0323", "thunder-agent")]
    (error,) = checked("plugins: [{type: prefix-cache-affinity-filter, parameters: {maxTokensInFlightPenalty: 1}}]")
    assert (error.code, error.span) == (Code.E0408, Span("c.yaml", 3, 61, 3, 85))


@pytest.mark.parametrize("row", [row for row in upstream_names() if row.kind == "type"], ids=lambda row: row.name)
def test_a_type_that_endpick_lacks_gets_its_successor(row) -> None:
    if row.name in {STRICT_BAND_SELECTION, *(one.type for one in discover())}:
        return
    ((code, advice, message), *_) = check(f"plugins: [{{type: {row.name}}}]")

    assert code == ("E0323" if row.is_missing else "E0301")
    assert advice == (f"use {row.successor}" if row.successor else "remove it, or look for a release of endpick that has it")
    assert row.is_missing == (row.status in message)


def test_names_that_end_in_nothing_known_stay_mistakes() -> None:
    (code, advice, _), *_ = check("plugins: [{type: kv-cache-utilisation-scorer}]")

    assert (code, advice) == ("E0301", "did you mean 'kv-cache-utilization-scorer'?")


def test_the_table_lists_each_name_once() -> None:
    keys = [(row.kind, row.owner, row.name) for row in upstream_names()]

    assert len(set(keys)) == len(keys)
    assert keys == sorted(keys, key=lambda key: (["type", "parameter", "field", "flag", "gate"].index(key[0]), *key[1:]))
    assert max(row.since for row in upstream_names()) == AS_OF
    for row in upstream_names():
        assert row.source
        assert len(row.since) == len("2026-08-21")
        assert row.state is not State.FORMER or row.successor


def test_the_table_agrees_with_what_endpick_reads() -> None:
    current = {kind: {row.name for row in upstream_names() if row.kind == kind and row.state is State.CURRENT} for kind in ("flag", "gate")}
    fields = [row for row in upstream_names() if row.kind == "field" and row.name != "data"]

    assert current == {"flag": {flag.name for flag in FLAGS}, "gate": set(DEFAULT_GATES)}
    for row in fields:
        *parents, name = row.name.split(".")
        part = part_at(tuple(parents)) or EndpointPickerConfig
        assert name in {field.alias for field in part.model_fields.values()}, row


def test_a_parameter_of_another_type_is_no_name_of_llm_d() -> None:
    assert find_name("parameter", "stalenessPolicy", "utilization-detector") is not None
    assert find_name("parameter", "stalenessPolicy", "queue-scorer") is None
