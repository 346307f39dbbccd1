"""Runs endpick's conformance kit."""

from __future__ import annotations

from collections.abc import Callable

from endpick.testing import parametrize_conformance

from acme_tenant.filter import TenantFilter


@parametrize_conformance([TenantFilter])
def test_conformance(check: Callable[[], None]) -> None:
    check()
