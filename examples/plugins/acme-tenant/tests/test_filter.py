"""Whose requests `acme.tenant-filter` lets go where."""

from __future__ import annotations

from collections.abc import Mapping

from endpick.api import Endpoints, PluginContext, ScoringState
from endpick.testing import make_request
from endpick.testing.pytest_plugin import MakeEndpoints
from endpick.testing.strategies import endpoints
from hypothesis import given
from hypothesis import strategies as st

from acme_tenant.filter import TenantFilter, TenantParameters

LABELS = [{"tenant": "red"}, {"tenant": "blue"}, {}]
TENANTS = st.sampled_from(["red", "blue", "green"])


def kept(candidates: Endpoints, headers: Mapping[str, str], *, shared: bool = True) -> list[str]:
    plugin = TenantFilter("it", TenantParameters(shared=shared), PluginContext())
    return [endpoint.name for endpoint in plugin.filter(make_request(headers=headers), candidates, ScoringState())]


def test_tenant_gets_its_own_endpoints_and_shared_ones(make_endpoints: MakeEndpoints) -> None:
    candidates = make_endpoints(3, labels=LABELS)

    assert kept(candidates, {"x-tenant": "red"}) == ["default/e0", "default/e2"]
    assert kept(candidates, {"x-tenant": "red"}, shared=False) == ["default/e0"]


def test_request_without_a_tenant_gets_shared_endpoints_only(make_endpoints: MakeEndpoints) -> None:
    candidates = make_endpoints(3, labels=LABELS)

    assert kept(candidates, {}) == ["default/e2"]
    assert kept(candidates, {}, shared=False) == []


@given(endpoints(labels={"tenant": TENANTS}), TENANTS)
def test_no_endpoint_of_another_tenant_is_ever_kept(candidates: Endpoints, tenant: str) -> None:
    owner = {endpoint.name: endpoint.labels.get("tenant", tenant) for endpoint in candidates}

    assert all(owner[name] == tenant for name in kept(candidates, {"x-tenant": tenant}))
