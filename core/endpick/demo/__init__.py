"""The demo: real requests through a real Envoy to simulated model servers, routed twice, compared at the end."""
