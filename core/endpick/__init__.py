"""endpick: an endpoint picker for LLM inference gateways whose routing logic is pip-installed."""

__version__ = "0.2.0"
