"""The `endpick` command: a table of verbs; each verb's module is imported when it runs."""

from __future__ import annotations

import functools
import importlib
import os
from dataclasses import dataclass

import click
from click.shell_completion import CompletionItem

from endpick import __version__

VARIABLE = "ENDPICK_CONFIG"


def extension(name: str) -> click.Command | None:
    """A verb of a hook object in $ENDPICK_CONFIG; ends the process if they cannot be loaded."""
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    return _commands(path).commands.get(name)


@functools.cache
def _commands(path: str) -> click.Group:
    from endpick.cli.console import print_diagnostics, read
    from endpick.diagnostics import exit_code_of, has_errors
    from endpick.host.loader import policy_of
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
    """A subcommand: its place, `module:function`, and its line in `--help`."""

    place: str
    summary: str


VERBS: dict[str, Verb] = {
    "up": Verb("up:command", "Run a gateway: Envoy and the picker, in front of model servers."),
    "serve": Verb("serve:command", "Serve a gateway: pick an endpoint for every request."),
    "validate": Verb("validate:validate", "Find every mistake in a configuration."),
    "migrate": Verb("migrate:command", "Convert llm-d's arguments, Deployment or Helm values."),
    "plan": Verb("plan:plan", "Show the resolved plan: order, weights and defaults."),
    "diff": Verb("diff:command", "Show what another configuration would do differently."),
    "graph": Verb("plan:graph", "Draw which plugin produces data for which other."),
    "new": Verb("new:command", "Create a project for a new plugin."),
    "list": Verb("listing:list_plugins", "List the installed plugin types."),
    "describe": Verb("describe:command", "Describe one plugin type."),
    "explain": Verb("listing:explain", "Explain a diagnostic code."),
    "test": Verb("test:command", "Run the conformance kit on installed plugins."),
    "try": Verb("dry_run:command", "Make one decision and show how each plugin voted."),
    "simulate": Verb("simulate:command", "Try configurations on a trace, and compare them."),
    "tune": Verb("tune:command", "Search better weights and parameters on a trace."),
    "replay": Verb("replay:command", "Decide recorded requests again with another configuration."),
    "why": Verb("why:command", "Explain a decision of a running endpick."),
    "doctor": Verb("doctor:command", "Check the environment for problems."),
    "schema": Verb("schema:command", "Print a JSON Schema, for editors and CI."),
    "lock": Verb("validate:lock", "Pin which distribution provides which plugin type."),
    "bundle": Verb("bundle:command", "Pack the state of a running endpick for a bug report."),
    "demo": Verb("demo:demo", "Route real traffic through Envoy to simulated model servers."),
    "sim-server": Verb("demo:sim_server", "Run one simulated model server."),
}


class LazyGroup(click.Group):
    """Imports a command when it is called, so `--help` stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in order."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb; an unknown one may belong to a hook object."""
        verb = VERBS.get(cmd_name)
        if verb is None:
            return extension(cmd_name)
        module, _, function = verb.place.partition(":")
        command = getattr(importlib.import_module(f"endpick.cli.{module}"), function)
        assert isinstance(command, click.Command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The verbs, without importing any, and options."""
        verbs = [CompletionItem(name, help=verb.summary) for name, verb in VERBS.items() if name.startswith(incomplete)]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.summary) for name, verb in VERBS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggests a verb for a misspelt one."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            import difflib

            close = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else " See 'endpick --help'."
            ctx.fail(f"no such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="endpick")
def main() -> None:
    """An endpoint picker for LLM inference gateways whose routing logic is pip-installed.

    Exit codes: 0 success, 1 a bug in endpick, 2 wrong usage, 3 invalid or unreadable configuration, 4 plugin missing, broken, incompatible
    or not as locked, 5 another file, a port, start-up or running failed, 6 `diff` found differences, 130 interrupted.
    """
