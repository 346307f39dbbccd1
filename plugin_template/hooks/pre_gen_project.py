"""Refuses invalid names; `endpick new` also checks for installed packages."""

import re
import sys

PLUGIN_TYPE = "{{ cookiecutter.plugin_type }}"
CLASS = "{{ cookiecutter.__class }}"
TYPE_PATTERN = r"[a-z][a-z0-9]*([.-][a-z0-9]+)*"

if not re.fullmatch(TYPE_PATTERN, PLUGIN_TYPE, re.ASCII):
    sys.exit(f"'{PLUGIN_TYPE}' is not a plugin type: write lower-case words joined by '-' or '.', such as acme.short-queue")
if "." not in PLUGIN_TYPE:
    sys.exit(f"'{PLUGIN_TYPE}' has no vendor, which only endpick's own types lack; write acme.{PLUGIN_TYPE}")
if not CLASS.isidentifier():
    sys.exit(f"'{PLUGIN_TYPE}' would define the class {CLASS}, which is not a Python name")
