"""Rejects invalid names. `endpick new` checks more, because it knows the installed plugins."""

import re
import sys

PLUGIN_TYPE = "{{ cookiecutter.plugin_type }}"
CLASS = "{{ cookiecutter.__class }}"
TYPE_PATTERN = r"[a-z][a-z0-9]*([.-][a-z0-9]+)*"

if not re.fullmatch(TYPE_PATTERN, PLUGIN_TYPE, re.ASCII):
    sys.exit(f"'{PLUGIN_TYPE}' is not a plugin type: write lower-case words joined by '-' or '.', such as acme.short-queue")
if "." not in PLUGIN_TYPE:
    sys.exit(f"'{PLUGIN_TYPE}' does not say whose it is, and types without a vendor are endpick's own; write acme.{PLUGIN_TYPE}")
if not CLASS.isidentifier():
    sys.exit(f"'{PLUGIN_TYPE}' would give a class called {CLASS}, which no Python class can be")
