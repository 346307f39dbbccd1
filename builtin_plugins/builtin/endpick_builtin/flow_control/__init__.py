"""Policies of flow control."""
