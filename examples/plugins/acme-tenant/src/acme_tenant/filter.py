"""`acme.tenant-filter`: keeps each tenant's requests on the endpoints that are theirs."""

from __future__ import annotations

from typing import Annotated

from endpick.api import Endpoint, Endpoints, Filter, InferenceRequest, Parameters, ScoringState
from pydantic import Field


class TenantParameters(Parameters):
    """Who a tenant is, and whose an endpoint is."""

    header: Annotated[str, Field(pattern="^[a-z0-9-]+$", description="Header that names the tenant.")] = "x-tenant"
    label: Annotated[str, Field(min_length=1, description="Label that says whose an endpoint is.")] = "tenant"
    shared: Annotated[bool, Field(description="Endpoints without the label serve every tenant.")] = True


class TenantFilter(Filter[TenantParameters]):
    """Keep the endpoints of the request's tenant and, if `shared`, those that have no tenant.

    A request without the header gets only endpoints without one. No endpoint of another tenant is ever kept: when
    a tenant has none left, the profile run fails.
    """

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> Endpoints:
        """Say which endpoints may serve the request."""
        tenant = request.headers.get(self.parameters.header)
        return endpoints.only(lambda endpoint: self._may_serve(endpoint, tenant))

    def _may_serve(self, endpoint: Endpoint, tenant: str | None) -> bool:
        owner = endpoint.labels.get(self.parameters.label)
        return self.parameters.shared if owner is None else owner == tenant
