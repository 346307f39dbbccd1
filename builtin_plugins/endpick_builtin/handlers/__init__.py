"""Profile handlers: which scheduling profiles run, and what do their results mean?

- `single_profile`: `single-profile-handler`: runs the only profile.

The plugin host loads them through their entry points. They may import `endpick.api`.
"""
