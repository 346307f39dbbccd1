"""`static-discovery`: endpoints that the configuration itself lists."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from endpick.api import ConfigurationError, Endpoint, Parameters
from endpick.api.discovery import EndpointDiscovery, EndpointRegistry
from endpick_builtin.addresses import ip_address


class StaticEndpoint(BaseModel):
    """One endpoint, with the fields of an endpoints file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, description="Unique in its namespace.")]
    namespace: Annotated[str, Field(min_length=1, description="Part of the endpoint's name.")] = "default"
    address: Annotated[str, AfterValidator(ip_address), Field(description="IP address, without brackets.")]
    port: Annotated[int, Field(ge=1, le=65535, description="TCP port of the model server.")]
    labels: Annotated[dict[str, str], Field(description="Labels, which filters and engines read.")] = {}


class StaticDiscoveryParameters(Parameters):
    """The endpoints."""

    endpoints: Annotated[
        tuple[StaticEndpoint, ...],
        Field(
            min_length=1,
            description="All endpoints of the pool.",
            examples=[[{"name": "a", "address": "10.0.0.1", "port": 8000, "labels": {"llm-d.ai/role": "decode"}}]],
        ),
    ]


class StaticDiscovery(EndpointDiscovery[StaticDiscoveryParameters]):
    """Takes the pool from its parameters, for a few servers with fixed addresses. Two endpoints of one name are a mistake."""

    async def run(self, registry: EndpointRegistry) -> None:
        """Report the endpoints once. Raises ConfigurationError if two have the same name."""
        found: dict[str, Endpoint] = {}
        for each in self.parameters.endpoints:
            name = f"{each.namespace}/{each.name}"
            if name in found:
                raise ConfigurationError(f"two of its endpoints are called '{name}'; give one of them another name")
            found[name] = Endpoint(name, each.address, each.port, dict(each.labels))
        registry.replace_all(found.values())
        registry.ready()
