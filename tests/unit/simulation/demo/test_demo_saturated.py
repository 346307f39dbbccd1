"""The saturated demo without processes: its load, its figures and its picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest

from endpick_lab.demo.runner import built_in, why_unfit
from endpick_lab.demo.saturated import (
    PRIORITIES,
    Answer,
    Ask,
    Bar,
    SaturatedSettings,
    bars_picture,
    make_asks,
    render,
    rows_of,
    without_queues,
)
from unit.simulation.demo.test_demo_configurations import plan_of


def test_saturated_load_exceeds_capacity_and_is_repeatable():
    settings = SaturatedSettings(Path("envoy"), duration_seconds=200.0)
    asks = make_asks(settings)
    assert asks == make_asks(settings) != make_asks(SaturatedSettings(Path("envoy"), 200.0, seed=2))
    assert settings.requests_per_second == pytest.approx(40.0)
    assert len(asks) == pytest.approx(4000, rel=0.1)
    assert asks[-1].due_seconds < 100.0
    tenants = Counter(ask.tenant for ask in asks)
    assert tenants["flood"] / tenants["trickle"] == pytest.approx(4.0, rel=0.15)
    assert Counter(ask.priority for ask in asks).keys() == set(PRIORITIES)


def test_bars_show_p90_and_the_number_of_answers():
    answers = [Answer(Ask(0.0, "flood", "high"), float(seconds), 200) for seconds in range(11)]
    refused = [Answer(Ask(0.0, "flood", "high"), 99.0, 429)]
    rows = rows_of({"one": answers + refused})
    assert rows[0] == Bar("high, flood", "one", 9.0, "11 of 12 answered")
    assert rows[1] == Bar("high, trickle", "one", 0.0, "0 of 0 answered")
    assert len(rows) == 6
    assert "high, flood" in render(rows).splitlines()[0]


def test_the_picture_has_a_bar_for_each_row_as_long_as_its_value():
    bars = [Bar("a & b", "without", 2.0, "x"), Bar("a & b", "with", 1.0, "y"), Bar("c", "with", 0.0, "z")]
    picture = ET.fromstring(bars_picture("Title", bars))
    shapes = [each for each in picture.iter() if each.tag.endswith("rect") and each.get("height") == "14"]
    first, second, third = (float(shape.get("width")) for shape in shapes)
    assert (first, second, third) == (2 * second, second, 0.0)
    assert shapes[1].get("fill") == shapes[2].get("fill") != shapes[0].get("fill")
    texts = [each.text for each in picture.iter() if each.tag.endswith("text")]
    assert texts.count("a & b") == 1
    assert ET.fromstring(bars_picture("Empty", []))


def test_both_configurations_find_the_servers_and_one_has_queues():
    with_queues, without = plan_of(built_in("flow-control").text), plan_of(without_queues().text)
    assert why_unfit(with_queues) is why_unfit(without) is None
    assert with_queues.flow_control is not None
    assert without.flow_control is None
