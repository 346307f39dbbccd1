"""Profile handlers and deciders: which scheduling profiles run, and how their results become destinations and headers."""
