"""Why a project cannot be made: each reason is a sentence that says what is wrong with the name, and what to do."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import endpick.api
from endpick.plugins.discovery import Candidate, find
from endpick.plugins.naming import is_valid_type
from endpick.scaffold.project import Project
from endpick.versions import HOST_DISTRIBUTION

MAX_TYPE_LENGTH = 50
MAX_STEM_LENGTH = 24
"""Longer names would make lines of code that need wrapping, which a template cannot do."""
TEST_PREFIX = "Test"
"""Classes called so are collected by pytest, wherever a test module imports them."""


def refuse_type(plugin_type: str) -> str | None:
    """Why nothing can have this plugin type, whatever is installed; None when something can."""
    if not is_valid_type(plugin_type):
        return f"'{plugin_type}' is not a plugin type: write lower-case letters and digits, joined by '-' or '.', such as acme.short-queue"
    vendor, dot, _ = plugin_type.partition(".")
    if not dot:
        return (
            f"'{plugin_type}' does not say whose it is, and types without a vendor are endpick's own; put yours before it, as in"
            f" acme.{plugin_type}"
        )
    if len(plugin_type) > MAX_TYPE_LENGTH:
        return f"'{plugin_type}' is longer than {MAX_TYPE_LENGTH} characters; shorten it"
    if vendor == HOST_DISTRIBUTION:
        return f"vendor '{HOST_DISTRIBUTION}' is reserved for endpick itself; use your own, as in acme.short-queue"
    return None


def refuse(project: Project, candidates: Iterable[Candidate], parent: Path) -> str | None:
    """Why this project cannot be made in the folder `parent`, given what is installed; None when it can."""
    return _refuse_definitions(project) or _refuse_taken(project, tuple(candidates)) or _refuse_folder(parent / project.distribution)


def _refuse_definitions(project: Project) -> str | None:
    if len(project.stem) > MAX_STEM_LENGTH:
        return f"'{project.stem}' is longer than {MAX_STEM_LENGTH} characters, and classes will be named after it; shorten it"
    for name in project.definitions:
        if name.startswith(TEST_PREFIX):
            return f"'{project.plugin_type}' would define {name}, which pytest takes for a test; say more about what it does"
        if not name.isidentifier():
            return f"'{project.plugin_type}' would define {name}, which is no Python name; begin its last word with a letter"
        if name in endpick.api.__all__:
            return f"'{project.plugin_type}' would define {name}, which endpick.api defines already; say more about what it does"
    return None


def _refuse_taken(project: Project, candidates: tuple[Candidate, ...]) -> str | None:
    for plugin_type in project.types:
        offers = find(candidates, plugin_type)
        if offers:
            return f"plugin type '{plugin_type}' is taken: {offers[0].origin} is installed and offers it; choose another name"
    installed = _installed_version(project.distribution)
    if installed is not None:
        return f"distribution '{project.distribution}' is taken: version {installed} is installed; choose another name"
    if find_spec(project.package) is not None:
        return f"package name '{project.package}' is taken: Python imports another module by it; choose another name"
    return None


def _installed_version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _refuse_folder(folder: Path) -> str | None:
    if folder.exists() or folder.is_symlink():
        return f"'{folder}' exists already; remove it, or say where else with --output"
    return None
