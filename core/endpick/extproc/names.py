"""The names of the Endpoint Picker Protocol: headers and metadata that a gateway and a picker agree on."""

from __future__ import annotations

DESTINATION_HEADER = "x-gateway-destination-endpoint"
"""Also the key below `DESTINATION_NAMESPACE`; both carry the same value."""
DESTINATION_NAMESPACE = "envoy.lb"
SERVED_KEY = "x-gateway-destination-endpoint-served"
"""Below `DESTINATION_NAMESPACE` in the response phase: the endpoint the gateway used in the end."""
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
SUBSET_KEY = "x-gateway-destination-endpoint-subset"
DROPPED_REASON_HEADER = "x-llm-d-request-dropped-reason"
