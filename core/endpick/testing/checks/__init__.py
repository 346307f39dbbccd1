"""The checks of the conformance kit, one module per part of a plugin."""
