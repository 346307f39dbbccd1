"""Runs the template: the only module that needs cookiecutter, which comes with the extra `scaffold`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from cookiecutter.generate import generate_context, generate_files
from cookiecutter.prompt import prompt_for_config

from endpick import __version__
from endpick.resources import resource
from endpick.scaffold.project import Project, project_of

TEMPLATE = "plugin_template"


@dataclass(frozen=True, slots=True)
class Draft:
    """A project that is named but not written."""

    project: Project
    variables: Mapping[str, object]


def draft(plugin_type: str, kind: str) -> Draft:
    """Name everything in a new project.

    Args:
        plugin_type: Well-formed.
        kind: One of `KINDS`.
    """
    given = {"plugin_type": plugin_type, "kind": kind, "endpick_version": __version__}
    context = generate_context(str(resource(TEMPLATE) / "cookiecutter.json"), extra_context=given)
    variables = prompt_for_config(context, no_input=True)
    return Draft(project_of(variables), variables)


def write(plan: Draft, parent: Path) -> Path:
    """Write the project into a new folder of `parent`, completely or not at all, and return the folder.

    Raises:
        OSError: `parent` cannot be written to, or has such a folder by now.
    """
    parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{plan.project.distribution}-", dir=parent) as workshop:
        # The hooks of the template are for those who run cookiecutter themselves; names have been judged by now.
        made = Path(generate_files(resource(TEMPLATE), {"cookiecutter": plan.variables}, workshop, accept_hooks=False))
        for compiled in list(made.rglob("__pycache__")):  # pip has compiled the template as if it were code
            shutil.rmtree(compiled)
        return made.rename(parent / made.name)
