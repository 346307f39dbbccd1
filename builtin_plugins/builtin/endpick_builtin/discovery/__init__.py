"""Endpoint discovery from the configuration, a file, or DNS."""
