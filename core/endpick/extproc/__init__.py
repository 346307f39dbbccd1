"""Envoy's external processing protocol without I/O: messages in, replies out. Start with `session.Session`."""
