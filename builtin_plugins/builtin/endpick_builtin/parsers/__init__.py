"""Parsers of request and response bodies."""
