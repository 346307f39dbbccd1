"""Keeps the endpoint table current."""
