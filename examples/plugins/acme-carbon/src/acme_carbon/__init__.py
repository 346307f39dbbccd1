"""Prefers endpoints where electricity is clean."""
