"""Verbs of the lab: one module per verb."""
