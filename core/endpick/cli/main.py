"""The `endpick` command: knows the verbs by name and one line each, and imports a verb's module only when it runs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import click

from endpick import __version__
from endpick.cli.extensions import extension


@dataclass(frozen=True, slots=True)
class Verb:
    """One subcommand: where it lives and what `--help` says of it."""

    module: str
    summary: str


VERBS: dict[str, Verb] = {
    "serve": Verb("endpick.cli.serve", "Serve a gateway: pick an endpoint for every request."),
    "validate": Verb("endpick.cli.validate", "Find every mistake in a configuration."),
    "plan": Verb("endpick.cli.plan", "Show the resolved plan: order, weights, defaults and why."),
    "graph": Verb("endpick.cli.graph", "Draw who produces which data for whom."),
    "new": Verb("endpick.cli.new", "Make a project for a new plugin."),
    "list": Verb("endpick.cli.listing", "List the installed plugin types."),
    "describe": Verb("endpick.cli.describe", "Tell all about one plugin type."),
    "explain": Verb("endpick.cli.explain", "Explain a diagnostic code."),
    "test": Verb("endpick.cli.test", "Find what is wrong with a plugin."),
    "try": Verb("endpick.cli.try_", "Show one decision, with every plugin's say."),
    "doctor": Verb("endpick.cli.doctor", "Examine the environment for trouble."),
    "schema": Verb("endpick.cli.schema", "Print a JSON Schema, for editors and checks."),
    "lock": Verb("endpick.cli.lock", "Pin which distribution provides which plugin type."),
    "demo": Verb("endpick.cli.demo", "Route real traffic through Envoy to simulated model servers."),
    "sim-server": Verb("endpick.cli.sim_server", "Run one simulated model server."),
}


class LazyGroup(click.Group):
    """A click group whose commands are imported when they are called, so that `--help` stays fast."""

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
