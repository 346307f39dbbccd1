"""The verbs of the command line: endpick's own, and those in tables of installed distributions.

A table is an entry point of the group `endpick.verbs.v1`. It leads to a mapping in a light module, which is imported for each unknown verb
and for `--help`:

```python
VERBS = {"report": ("acme_reports.command:report", "Write the monthly report.")}
```
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from endpick.diagnostics import Diagnostic
    from endpick.host.discovery import Candidate

Table = Mapping[str, tuple[str, str]]  # by verb, the command as `module:attribute` and its line in `--help`

HOST_VERBS: Table = {
    "serve": ("endpick.cli.serve:command", "Serve a gateway: pick an endpoint for every request."),
    "validate": ("endpick.cli.validate:validate", "Find every mistake in a configuration."),
    "plan": ("endpick.cli.plan:plan", "Show the resolved plan: order, weights and defaults."),
    "diff": ("endpick.cli.diff:command", "Show what another configuration would do differently."),
    "graph": ("endpick.cli.plan:graph", "Draw which plugin produces data for which other."),
    "new": ("endpick.cli.new:command", "Create a project for a new plugin."),
    "list": ("endpick.cli.listing:list_plugins", "List the installed plugin types."),
    "describe": ("endpick.cli.describe:command", "Describe one plugin type."),
    "explain": ("endpick.cli.listing:explain", "Explain a diagnostic code."),
    "test": ("endpick.cli.test:command", "Run the conformance kit on installed plugins."),
    "try": ("endpick.cli.dry_run:command", "Make one decision and show how each plugin voted."),
    "why": ("endpick.cli.why:command", "Explain a decision of a running endpick."),
    "doctor": ("endpick.cli.doctor:command", "Check the environment for problems."),
    "schema": ("endpick.cli.schema:command", "Print a JSON Schema, for editors and CI."),
    "lock": ("endpick.cli.validate:lock", "Pin which distribution provides which plugin type."),
    "bundle": ("endpick.cli.bundle:command", "Pack the state of a running endpick for a bug report."),
}


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of an installed distribution."""

    name: str
    place: str
    summary: str
    table: Candidate

    @property
    def section(self) -> str:
        """The heading of the verb's table in `--help`."""
        return self.table.type.capitalize() if self.table.is_builtin else self.table.distribution


@dataclass(frozen=True, slots=True)
class InstalledVerbs:
    """The usable verbs by name, the mistakes in tables, and names that several distributions offer."""

    verbs: Mapping[str, Verb]
    mistakes: tuple[Diagnostic, ...]
    ambiguous: frozenset[str] = frozenset()


def installed_verbs() -> InstalledVerbs:
    """Read the tables of verbs of all installed distributions."""
    from endpick.host.discovery import discover_verb_tables

    offers: dict[str, list[Verb]] = {}
    mistakes: list[Diagnostic] = []
    for table in sorted(discover_verb_tables(), key=lambda table: not table.is_builtin):
        for entry in _read(table):
            if isinstance(entry, Verb):
                offers.setdefault(entry.name, []).append(entry)
            else:
                mistakes.append(entry)
    taken = {name: verbs for name, verbs in offers.items() if name in HOST_VERBS or len(verbs) > 1}
    mistakes += [_taken(name, verbs) for name, verbs in sorted(taken.items())]
    usable = {name: verbs[0] for name, verbs in offers.items() if name not in taken}
    return InstalledVerbs(usable, tuple(mistakes), frozenset(taken) - HOST_VERBS.keys())


def load(place: str) -> click.Command:
    """Import a command. Raises the errors of the import, and TypeError if the target is no command."""
    module, _, attribute = place.partition(":")
    command = getattr(importlib.import_module(module), attribute)
    if not isinstance(command, click.Command):
        raise TypeError(f"it leads to {command!r:.80}, no click command")
    return command


def load_installed(verb: Verb) -> click.Command | Diagnostic:
    """Import the command of an installed distribution; returns a diagnostic if it fails."""
    from endpick.diagnostics import Code, Diagnostic
    from endpick.host.failures import PLUGIN_ERRORS, describe_error, trace_notes

    subject = f"'{verb.name}' cannot be imported"
    try:
        return load(verb.place)
    except ModuleNotFoundError as error:
        missing = str(error.name)
        if verb.place.partition(":")[0].startswith(missing):
            return _wrong_place(verb, f"{subject}: {verb.table.origin} names {verb.place}, and there is no such module")
        message = f"{subject}: {verb.table.origin} needs the module '{missing}', which is not installed"
        return Diagnostic(Code.E0326, message, help=_installing(verb, missing), notes=trace_notes(error))
    except (AttributeError, TypeError) as error:
        return _wrong_place(verb, f"{subject}: {verb.table.origin} names {verb.place}: {error}")
    except PLUGIN_ERRORS as error:
        message = f"{subject}: {verb.table.origin} raised {describe_error(error)}"
        return Diagnostic(Code.E0326, message, help=f"report it to the author of {verb.table.distribution}", notes=trace_notes(error))


def _wrong_place(verb: Verb, message: str) -> Diagnostic:
    from endpick.diagnostics import Code, Diagnostic

    return Diagnostic(Code.E0326, message, help=f"the author of {verb.table.distribution} has to correct {verb.table.target}")


def _installing(verb: Verb, module: str) -> str:
    from endpick.host.discovery import extra_with

    extra = extra_with(verb.table.distribution, module)
    return f"pip install '{verb.table.distribution}[{extra}]'" if extra else f"install the package that has the module '{module}'"


def _read(table: Candidate) -> Iterator[Verb | Diagnostic]:
    try:
        module, _, attribute = table.target.partition(":")
        entries = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # a stranger's module may raise anything
        yield _unreadable(table, f"importing {table.target} raised {type(error).__name__}: {error}", error)
        return
    problem = _malformed(entries)
    if problem:
        yield _unreadable(table, problem)
        return
    for name, (place, summary) in entries.items():
        yield Verb(name, place, summary, table)


def _unreadable(table: Candidate, problem: str, error: Exception | None = None) -> Diagnostic:
    from endpick.diagnostics import Code, Diagnostic
    from endpick.host.failures import trace_notes

    message = f"the verbs of {table.origin} cannot be read: {problem}"
    notes = () if error is None else trace_notes(error)
    return Diagnostic(Code.E0324, message, help=f"the author of {table.distribution} has to correct {table.target}", notes=notes)


def _malformed(table: object) -> str:
    form = 'a mapping such as {"report": ("acme_reports.command:report", "Write the monthly report.")}'
    if not isinstance(table, Mapping):
        return f"{table!r:.80} is not {form}"
    for name, entry in table.items():
        is_entry = isinstance(entry, tuple | list) and len(entry) == 2 and all(isinstance(part, str) for part in entry)
        if not isinstance(name, str) or not is_entry or ":" not in entry[0]:
            return f"{name!r:.40}: {entry!r:.80} is no entry of {form}"
    return ""


def _taken(name: str, verbs: list[Verb]) -> Diagnostic:
    from endpick.diagnostics import Code, Diagnostic

    origins = " and ".join(sorted({verb.table.origin for verb in verbs}))
    notes = tuple(f"{verb.table.origin} offers {verb.place} in {verb.table.metadata_path}" for verb in verbs)
    if name in HOST_VERBS:
        message = f"the verb '{name}' of {origins} is ignored: endpick has a verb of this name"
        return Diagnostic(Code.E0325, message, help="ask its author for another name", notes=notes)
    return Diagnostic(Code.E0325, f"the verb '{name}' is offered by {origins}", help="uninstall one of them", notes=notes)
