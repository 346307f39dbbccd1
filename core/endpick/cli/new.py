"""`endpick new`: creates a project for a new plugin from `plugin_template`."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from pydantic import Field

import endpick.api
from endpick import __version__
from endpick.cli.console import FORMAT_OPTION, fail, json_text
from endpick.cli.output import Output
from endpick.host.discovery import HOST_DISTRIBUTION, Candidate, discover, find, installed_version, is_valid_type, resource

# a data source comes with a collector; a `pool-source` fetches data of the whole pool
KINDS = (
    "filter",
    "scorer",
    "picker",
    "profile-handler",
    "data-source",
    "pool-source",
    "data-producer",
    "fairness-policy",
    "ordering-policy",
    "usage-limit-policy",
    "eviction-filter",
    "eviction-ordering-policy",
)


@dataclass(frozen=True, slots=True)
class Project:
    """A project's names, derived from a plugin type and a kind by `cookiecutter.json`."""

    types: tuple[str, ...]  # the requested one first
    kind: str  # one of `KINDS`
    distribution: str
    package: str
    module: str
    stem: str  # prefix of class names: the last part of the type without its kind
    definitions: tuple[str, ...]  # names of classes and constants
    variables: Mapping[str, str]  # of the template

    @property
    def plugin_type(self) -> str:
        """The plugin type that the user asked for."""
        return self.types[0]


MAX_TYPE_LENGTH = 50
MAX_STEM_LENGTH = 24  # longer names would need line breaks
TEST_PREFIX = "Test"  # pytest collects imported classes with this prefix


def refuse_type(plugin_type: str) -> str | None:
    """Return the reason why no plugin can have this type, or None."""
    if not is_valid_type(plugin_type):
        return f"'{plugin_type}' is not a plugin type: write lower-case letters and digits, joined by '-' or '.', such as acme.short-queue"
    vendor, dot, _ = plugin_type.partition(".")
    if not dot:
        return f"'{plugin_type}' has no vendor, which only endpick's own types lack; put yours first, as in acme.{plugin_type}"
    if len(plugin_type) > MAX_TYPE_LENGTH:
        return f"'{plugin_type}' is longer than {MAX_TYPE_LENGTH} characters; shorten it"
    if vendor == HOST_DISTRIBUTION:
        return f"vendor '{HOST_DISTRIBUTION}' is reserved for endpick itself; use your own, as in acme.short-queue"
    return None


TEMPLATE = "plugin_template"


def draft(plugin_type: str, kind: str) -> Project:
    """Name every part of a new project; `plugin_type` is well-formed."""
    from cookiecutter.generate import generate_context
    from cookiecutter.prompt import prompt_for_config

    given = {"plugin_type": plugin_type, "kind": kind, "endpick_version": __version__}
    context = generate_context(str(resource(TEMPLATE) / "cookiecutter.json"), extra_context=given)
    names = prompt_for_config(context, no_input=True)
    collects = names["__collects"] != ""
    has_key = names["__keys_file"] != ""
    return Project(
        types=(names["plugin_type"], *([names["__collector_type"]] if collects else [])),
        kind=names["kind"],
        distribution=names["distribution"],
        package=names["__package"],
        module=names["__module"],
        stem=names["__stem"],
        definitions=(
            names["__class"],
            names["__parameters"],
            *((names["__collector"], names["__payload"]) if collects else ()),
            *((names["__key"],) if has_key else ()),
        ),
        variables=names,
    )


def refuse(project: Project, candidates: Iterable[Candidate], parent: Path) -> str | None:
    """Return the reason why the project cannot be created in `parent`, or None."""
    return _refuse_definitions(project) or _refuse_taken(project, tuple(candidates)) or _refuse_folder(parent / project.distribution)


def _refuse_definitions(project: Project) -> str | None:
    if len(project.stem) > MAX_STEM_LENGTH:
        return f"'{project.stem}' is longer than {MAX_STEM_LENGTH} characters, and classes will be named after it; shorten it"
    for name in project.definitions:
        if name.startswith(TEST_PREFIX):
            return f"'{project.plugin_type}' would define {name}, which pytest takes for a test; say more about what it does"
        if not name.isidentifier():
            return f"'{project.plugin_type}' would define {name}, which is not a Python name; begin its last word with a letter"
        if name in endpick.api.__all__:
            return f"'{project.plugin_type}' would define {name}, which endpick.api defines already; say more about what it does"
    return None


def _refuse_taken(project: Project, candidates: tuple[Candidate, ...]) -> str | None:
    for plugin_type in project.types:
        offers = find(candidates, plugin_type)
        if offers:
            return f"plugin type '{plugin_type}' is taken: {offers[0].origin} is installed and offers it; choose another name"
    installed = installed_version(project.distribution)
    if installed is not None:
        return f"distribution '{project.distribution}' is taken: version {installed} is installed; choose another name"
    if find_spec(project.package) is not None:
        return f"package name '{project.package}' is taken: Python imports another module by it; choose another name"
    return None


def _refuse_folder(folder: Path) -> str | None:
    if folder.exists() or folder.is_symlink():
        return f"'{folder}' exists already; remove it, or choose another folder with --output"
    return None


def write(project: Project, parent: Path) -> Path:
    """Write the project completely or not at all; returns its folder in `parent`. Raises OSError."""
    from cookiecutter.generate import generate_files

    parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{project.distribution}-", dir=parent) as workshop:
        # `refuse` has checked the names instead of the template's hooks.
        made = Path(generate_files(resource(TEMPLATE), {"cookiecutter": project.variables}, workshop, accept_hooks=False))
        for compiled in list(made.rglob("__pycache__")):  # pip compiles the template when it installs endpick
            shutil.rmtree(compiled)
        return made.rename(parent / made.name)


class NewOutput(Output):
    """Output of `endpick new`."""

    type: str
    types: list[str] = Field(description="All plugin types of the project, the requested one first.")
    kind: str
    distribution: str
    package: str
    folder: str
    files: list[str] = Field(description="Relative to the folder.")
    next: list[str] = Field(description="The next commands to run.")


OUTPUTS = {"new": NewOutput}


@click.command("new", short_help="Create a project for a new plugin.")
@click.argument("name")
@click.option("--kind", type=click.Choice(KINDS), required=True, help="Kind of the plugin.")
@click.option("--vendor", help="First part of the plugin type: acme gives acme.NAME.")
@click.option(
    "--output", "parent", type=click.Path(file_okay=False, path_type=Path), default=Path(), help="Folder in which to create the project."
)
@FORMAT_OPTION
def command(name: str, kind: str, vendor: str | None, parent: Path, output: str) -> None:
    """Create a project for the new plugin NAME: typed, tested and ready to publish. Asks nothing.

    NAME is the plugin type with its vendor, such as acme.short-queue, or without it if --vendor is given.
    """
    project = _draft(name if vendor is None else _with_vendor(vendor, name), kind, parent)
    try:
        shown = _output(project, write(project, parent))
    except OSError as problem:
        fail(f"'{parent / project.distribution}' cannot be written: {problem.strerror or problem}")
    click.echo(json_text(shown) if output == "json" else _text(shown, project.module), nl=False)


def _with_vendor(vendor: str, name: str) -> str:
    if "." in name:
        raise click.BadParameter(f"'{name}' has a vendor already; leave out --vendor", param_hint="NAME")
    return f"{vendor}.{name}"


def _draft(plugin_type: str, kind: str, parent: Path) -> Project:
    reason = refuse_type(plugin_type)
    if reason is not None:
        raise click.BadParameter(reason, param_hint="NAME")
    try:
        project = draft(plugin_type, kind)
    except ModuleNotFoundError as missing:
        fail(f"'{missing.name}' is not installed, and `endpick new` needs it; pip install 'endpick[scaffold]'")
    reason = refuse(project, discover(), parent)
    if reason is not None:
        raise click.BadParameter(reason, param_hint="NAME")
    return project


def _output(project: Project, folder: Path) -> NewOutput:
    return NewOutput(
        type=project.plugin_type,
        types=list(project.types),
        kind=project.kind,
        distribution=project.distribution,
        package=project.package,
        folder=str(folder),
        files=sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()),
        next=[f"cd {shlex.quote(str(folder))}", "python -m pip install --editable '.[dev]'", "python -m pytest"],
    )


def _text(shown: NewOutput, module: str) -> str:
    commands = "".join(f"  {command}\n" for command in shown.next)
    return (
        f"made {shown.folder}: the {shown.kind} {' and its collector '.join(shown.types)}\n\n{commands}\n"
        f"Your idea goes into src/{shown.package}/{module}.py.\n"
    )
