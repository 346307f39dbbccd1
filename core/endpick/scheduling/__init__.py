"""Chooses endpoints: `Scheduler` runs the profiles its handler names; a `Profile` filters, scores and picks."""
