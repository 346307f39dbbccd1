"""Screeners: who is no candidate at all, for any profile."""
