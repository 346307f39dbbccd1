"""reference/cli.md: every command and option."""

from __future__ import annotations

import inspect
import textwrap

import click

from docs_reference.markdown import code, table
from docs_reference.markdown import page as markdown_page
from endpick.cli.llm_d_flags import FLAGS, REMOVED
from endpick.cli.main import VERBS, main
from endpick.diagnostics import ExitCode

_EXITS = {
    ExitCode.OK: "The command did what it was asked; there may have been warnings.",
    ExitCode.INTERNAL_ERROR: "A bug in endpick.",
    ExitCode.USAGE: "The command line was wrong.",
    ExitCode.CONFIG_INVALID: "The configuration has mistakes; each was reported with its place.",
    ExitCode.PLUGIN_UNUSABLE: "A plugin that the configuration needs is missing, broken or incompatible.",
    ExitCode.FAILED: "The environment refused: a port in use, a file unreadable, a start or stop that failed.",
    ExitCode.INTERRUPTED: "Stopped by Ctrl-C.",
}


def page() -> str:
    """The page."""
    context = click.Context(main, info_name="endpick")
    summary = table(("command", "does"), ((f"[`{name}`](#endpick-{name})", verb.summary) for name, verb in VERBS.items()))
    return markdown_page(
        "Command line",
        "Look up here every command of `endpick`, its options with their defaults, and what its exit code says.",
        summary,
        "## Exit codes",
        table(("code", "meaning"), ((str(int(exit_code)), _EXITS[exit_code]) for exit_code in ExitCode)),
        "Where several apply, the smallest wins: operators repair their own file before another author's plugin.",
        *(_verb(name, context) for name in VERBS),
    )


def _verb(name: str, parent: click.Context) -> str:
    command = main.get_command(parent, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent)
    usage = f"```text\nendpick {name} {' '.join(command.collect_usage_pieces(context))}\n```"
    options = [parameter for parameter in command.get_params(context) if isinstance(parameter, click.Option)]
    rows = (_option(option, context) for option in options if "--help" not in option.opts)
    text = "\n\n".join(map(_paragraph, inspect.cleandoc(command.help or "").split("\n\n")))
    shown = table(("option", "value", "default", "meaning"), rows)
    return "\n\n".join(filter(None, (f"## `endpick {name}`", usage, text, shown, _llm_ds_flags() if name == "serve" else "")))


_ABOUT_FLAGS = (
    "`serve` takes every flag of llm-d's endpoint picker, written with one dash or two. A flag given without effect is named in one "
    "warning; those that count *with Kubernetes* have none while discovery does not ask Kubernetes."
)


def _llm_ds_flags() -> str:
    rows = ((code(f"--{flag.name}"), flag.kind, code(flag.default) if flag.default else "", flag.effect.value, flag.note) for flag in FLAGS)
    removed = ((code(f"--{name}"), instead) for name, instead in REMOVED.items())
    return "\n\n".join(
        (
            "### llm-d's flags",
            _ABOUT_FLAGS,
            table(("flag", "type", "llm-d's default", "does here", "differences"), rows),
            "llm-d has removed these, and endpick refuses them as llm-d does:",
            table(("flag", "use instead"), removed),
        )
    )


def _paragraph(text: str) -> str:
    """What click is told to leave as it is becomes a block."""
    return f"```text\n{textwrap.dedent(text[2:]).strip()}\n```" if text.startswith("\b\n") else text


def _option(option: click.Option, context: click.Context) -> tuple[str, str, str, str]:
    names = ", ".join(map(code, (*option.opts, *option.secondary_opts)))
    value = "" if option.is_flag else _value(option, context)
    return names, value, _default(option), option.help or ""


def _value(option: click.Option, context: click.Context) -> str:
    if isinstance(option.type, click.Choice):
        return ", ".join(code(choice) for choice in option.type.choices)
    return code(option.make_metavar(context))


def _default(option: click.Option) -> str:
    default = option.to_info_dict()["default"]
    known = isinstance(default, str | int | float) or hasattr(default, "__fspath__")
    return code(default) if known and not isinstance(default, bool) else code("true") if default is True else ""
