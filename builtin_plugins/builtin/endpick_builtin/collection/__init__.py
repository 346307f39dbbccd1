"""Data sources and their collectors."""
