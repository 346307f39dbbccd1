"""Verbs that hook objects add to the command line: those of the configuration that `ENDPICK_CONFIG` names."""

from __future__ import annotations

import functools
import os

import click

VARIABLE = "ENDPICK_CONFIG"


def extension(name: str) -> click.Command | None:
    """The added verb of this name; None when there is none, or when no configuration is named.

    A configuration that cannot be read, and hook objects that cannot be loaded, end the process: a verb that is missing for such
    a reason would only be called unknown.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    return _commands(path).commands.get(name)


@functools.cache
def _commands(path: str) -> click.Group:
    from endpick.cli.reading import print_diagnostics, read  # heavy, and needed only for verbs that endpick does not have
    from endpick.diagnostics import exit_code_of, has_errors
    from endpick.planning.hooks import load_named_hooks
    from endpick.planning.installed import policy_of

    group = click.Group()
    loaded = read(path)
    diagnostics = loaded.diagnostics if loaded.has_errors else ()
    if loaded.config is not None and not diagnostics:
        hooks, faults = load_named_hooks(loaded.config, loaded.source, policy_of(loaded.config))
        diagnostics = (*faults, *hooks.add_commands(group))
    if has_errors(diagnostics):
        print_diagnostics(diagnostics, [loaded])
        raise SystemExit(exit_code_of(diagnostics))
    return group
