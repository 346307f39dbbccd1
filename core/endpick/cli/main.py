"""The `endpick` command: each verb's module is imported when it runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

import click
from click.shell_completion import CompletionItem

from endpick import __version__
from endpick.cli.verbs import HOST_VERBS, InstalledVerbs, installed_verbs, load, load_installed

if TYPE_CHECKING:
    from endpick.diagnostics import Diagnostic


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*HOST_VERBS, *_installed(ctx).verbs]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb. Tables of other distributions are read only for verbs that the host does not have."""
        if cmd_name in HOST_VERBS:
            return load(HOST_VERBS[cmd_name][0])
        verb = _installed(ctx).verbs.get(cmd_name)
        if verb is None:
            return None
        command = load_installed(verb)
        if not isinstance(command, click.Command):
            _exit_with([command])
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        summaries = [(name, summary) for name, (_, summary) in HOST_VERBS.items()]
        summaries += [(name, verb.summary) for name, verb in _installed(ctx).verbs.items()]
        verbs = [CompletionItem(name, help=summary) for name, summary in summaries if name.startswith(incomplete)]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List endpick's verbs, then a section for each table, without importing verbs."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in HOST_VERBS.items()])
        installed = _installed(ctx)
        for section in dict.fromkeys(verb.section for verb in installed.verbs.values()):
            with formatter.section(section):
                formatter.write_dl([(verb.name, verb.summary) for verb in installed.verbs.values() if verb.section == section])
        if installed.mistakes:
            formatter.write_paragraph()
            formatter.write_text("Some installed verbs cannot be used; `endpick doctor` explains why.")

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest a verb for a misspelt one. Reports unreadable tables, because they may contain it."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            installed = _installed(ctx)
            if args[0] in installed.ambiguous:
                _exit_with(mistake for mistake in installed.mistakes if f"'{args[0]}'" in mistake.message)
            import difflib

            from endpick.cli.console import print_diagnostics

            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean '{close[0]}'?" if close else " See 'endpick --help'."
            print_diagnostics(installed.mistakes, [])
            ctx.fail(f"no such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)


def _installed(ctx: click.Context) -> InstalledVerbs:
    if ctx.obj is None:
        ctx.obj = installed_verbs()
    assert isinstance(ctx.obj, InstalledVerbs)
    return ctx.obj


def _exit_with(diagnostics: Iterable[Diagnostic]) -> NoReturn:
    from endpick.cli.console import print_diagnostics
    from endpick.diagnostics import ExitCode

    print_diagnostics(diagnostics, [])
    raise SystemExit(ExitCode.PLUGIN_UNUSABLE)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="endpick")
def main() -> None:
    """An endpoint picker for LLM inference gateways whose routing logic is pip-installed.

    Exit codes: 0 success, 1 a bug in endpick, 2 wrong usage, 3 invalid or unreadable configuration, 4 plugin missing, broken, incompatible
    or not as locked, 5 another file, a port, start-up or running failed, 6 `diff` found differences, 130 interrupted.
    """
