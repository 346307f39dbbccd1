"""Profile handlers and deciders."""
