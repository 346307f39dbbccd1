"""Endpoint discoveries: where the pool comes from."""
