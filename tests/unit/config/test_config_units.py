"""Durations and quantities mean what Go and Kubernetes mean by them."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api.plugin import parse_duration
from endpick.config.gates import DEFAULT_GATES, parse_gate
from endpick.config.model import EndpointPickerConfig
from endpick.config.units import MAX_QUANTITY, parse_quantity


def test_a_duration_is_read_as_go_reads_it() -> None:
    for text, seconds in [
        ("200ms", 0.2),
        ("60s", 60),
        ("1m30s", 90),
        ("1.5h", 5400),
        ("1h1m1s1ms1us1ns", 3661.001001001),
        ("+5s", 5),
        ("-5s", -5),
        (".5s", 0.5),
        ("3µs", 3e-6),
    ]:
        assert parse_duration(text) == pytest.approx(seconds, abs=1e-12)


def test_what_go_does_not_read_is_no_duration() -> None:
    for text in ["", "5", "s", ".s", "5 s", "1d", "1m 30s", "1e3s", "٣s", "1s\n", "300000h1e9h", "9999999h"]:
        with pytest.raises(ValueError, match=re.escape(f"'{text}' is not a duration")):
            parse_duration(text)


@given(st.integers(0, 10_000), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_the_parts_of_a_duration_add_up(hours: int, minutes: int, seconds: int, milliseconds: int) -> None:
    text = f"{hours}h{minutes}m{seconds}s{milliseconds}ms"

    assert parse_duration(text) == pytest.approx(hours * 3600 + minutes * 60 + seconds + milliseconds / 1000)


def test_a_quantity_is_read_as_kubernetes_reads_it() -> None:
    for text, value in [
        ("0", 0),
        ("1k", 1000),
        ("1Ki", 1024),
        ("1Gi", 2**30),
        ("1.5Gi", 3 * 2**29),
        ("1e3", 1000),
        ("1E", 10**18),
        ("2e-1", 1),
        ("1500m", 2),
        ("2500000u", 3),
        ("3000000000n", 3),
        ("0.1", 1),
        ("-1", -1),
        (".5k", 500),
        ("7Ei", 7 * 2**60),
    ]:
        assert parse_quantity(text) == value


def test_what_kubernetes_does_not_read_is_no_quantity() -> None:
    for text in ["", "k", ".", "1GB", "1gi", "1 Gi", "1Gib", "0x10", "1_000", "1e", "8Ei", "1e400", "nan", "inf"]:
        with pytest.raises(ValueError, match=re.escape(f"'{text}' is not a quantity")):
            parse_quantity(text)


@given(st.integers(-(10**9), 10**9), st.sampled_from(["", "k", "M", "Ki", "Mi", "Gi"]))
def test_a_quantity_scales_by_its_suffix(number: int, suffix: str) -> None:
    factors = {"": 1, "k": 10**3, "M": 10**6, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
    value = number * factors[suffix]
    if abs(value) <= MAX_QUANTITY:
        assert parse_quantity(f"{number}{suffix}") == value


@given(st.decimals(min_value=0, max_value=10**6, places=3))
def test_a_fraction_of_a_quantity_is_rounded_up(number) -> None:
    value = parse_quantity(f"{number:f}")

    assert 0 <= value - Fraction(number) < 1


def test_a_gate_is_a_name_or_a_name_with_a_boolean() -> None:
    for entry, expected in [
        ("flowControl", ("flowControl", True)),
        (" flowControl = TRUE ", ("flowControl", True)),
        ("flowcontrol=f", ("flowControl", False)),
        ("flowControl=0", ("flowControl", False)),
        ("other", ("other", True)),
        ("flowControl=", None),
        ("flowControl=yes", None),
    ]:
        assert parse_gate(entry) == expected


def test_gates_have_defaults_and_the_last_entry_wins() -> None:
    def gates(*entries: str) -> dict[str, bool]:
        return EndpointPickerConfig.model_construct(feature_gates=entries).gates

    assert gates() == {"flowControl": False, "haPopulateNonLeaderDatastore": True}
    assert gates("flowControl", "flowControl=false", "unknown", "flowControl=maybe") == dict(DEFAULT_GATES)
    assert gates("flowControl")["flowControl"] is True
