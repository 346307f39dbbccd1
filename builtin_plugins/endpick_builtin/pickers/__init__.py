"""Pickers: which of the rated endpoints it becomes."""
