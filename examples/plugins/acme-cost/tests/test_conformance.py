"""Runs endpick's conformance kit."""

from __future__ import annotations

from collections.abc import Callable

from endpick.testing import parametrize_conformance

from acme_cost.picker import CostPicker


@parametrize_conformance([CostPicker])
def test_conformance(check: Callable[[], None]) -> None:
    check()
