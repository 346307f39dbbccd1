"""Data collectors: how payloads become columns."""
