"""Profile handlers: which scheduling profiles run for a request, and what their results mean."""
