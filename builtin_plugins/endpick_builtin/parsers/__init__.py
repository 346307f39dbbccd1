"""Parsers: how request and response bodies are read."""
