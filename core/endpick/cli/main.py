"""The `endpick` command: knows the verbs by name and one line each, and imports a verb's module only when it runs."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

from endpick import __version__

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
    from endpick.cli.console import print_diagnostics, read  # heavy, and needed only for verbs that endpick does not have
    from endpick.diagnostics import exit_code_of, has_errors
    from endpick.host.catalog import policy_of
    from endpick.host.planning.planner import load_named_hooks

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


@dataclass(frozen=True, slots=True)
class Verb:
    """One subcommand: where it lives and what `--help` says of it."""

    module: str
    summary: str


VERBS: dict[str, Verb] = {
    "serve": Verb("endpick.cli.serve", "Serve a gateway: pick an endpoint for every request."),
    "validate": Verb("endpick.cli.validate", "Find every mistake in a configuration."),
    "migrate": Verb("endpick.cli.migrate", "Turn llm-d's arguments, Deployment or Helm values into a command of endpick."),
    "plan": Verb("endpick.cli.plan", "Show the resolved plan: order, weights, defaults and why."),
    "graph": Verb("endpick.cli.graph", "Draw who produces which data for whom."),
    "new": Verb("endpick.cli.new", "Make a project for a new plugin."),
    "list": Verb("endpick.cli.listing", "List the installed plugin types."),
    "describe": Verb("endpick.cli.describe", "Tell all about one plugin type."),
    "explain": Verb("endpick.cli.explain", "Explain a diagnostic code."),
    "test": Verb("endpick.cli.test", "Find what is wrong with a plugin."),
    "try": Verb("endpick.cli.dry_run", "Show one decision, with every plugin's say."),
    "doctor": Verb("endpick.cli.doctor", "Examine the environment for trouble."),
    "schema": Verb("endpick.cli.schema", "Print a JSON Schema, for editors and checks."),
    "lock": Verb("endpick.cli.lock", "Pin which distribution provides which plugin type."),
    "demo": Verb("endpick.cli.demo", "Route real traffic through Envoy to simulated model servers."),
    "sim-server": Verb("endpick.cli.sim_server", "Run one simulated model server."),
}


@contextmanager
def _printable_errors() -> Iterator[None]:
    """What a user typed, and click repeats, commands no terminal."""
    try:
        yield
    except click.ClickException as problem:
        from endpick.diagnostics.text import printable  # imported here: only a mistake pays for it

        said = problem.format_message()
        shown = "\n".join(map(printable, said.split("\n")))
        if shown == said:
            raise
        told = click.UsageError(shown, problem.ctx) if isinstance(problem, click.UsageError) else click.ClickException(shown)
        raise told from problem


class LazyGroup(click.Group):
    """A click group whose commands are imported when they are called, so that `--help` stays fast."""

    def make_context(self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any) -> click.Context:  # noqa: ANN401 - as click has it
        """As click does, with errors that are shown as text."""
        with _printable_errors():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - as click has it
        """As click does, with errors that are shown as text."""
        with _printable_errors():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order a newcomer meets them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one verb; what endpick does not have may be a hook object's."""
        verb = VERBS.get(cmd_name)
        if verb is None:
            return extension(cmd_name)
        command = importlib.import_module(verb.module).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.summary) for name, verb in VERBS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with a suggestion for a misspelt verb."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            import difflib  # imported here: only a typing mistake pays for it

            close = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else " See 'endpick --help'."
            ctx.fail(f"no such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="endpick")
def main() -> None:
    """An endpoint picker for LLM inference gateways whose routing logic is pip-installed.

    Exit codes: 0 fine, 1 a bug in endpick, 2 wrong usage, 3 configuration invalid, 4 plugin missing, broken or incompatible,
    5 start-up or runtime failure, 130 interrupted.
    """
