"""Envoy's external processing protocol without sockets: messages in, replies out."""
