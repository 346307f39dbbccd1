"""reference/cli.md: every command and option."""

from __future__ import annotations

import inspect
import itertools
import re
import textwrap

import click

from docs_reference.markdown import code, listed, table
from docs_reference.markdown import page as markdown_page
from endpick.cli.llm_d_flags import FLAGS, Effect
from endpick.cli.main import main
from endpick.cli.verbs import HOST_VERBS, installed_verbs
from endpick.diagnostics import ExitCode

_Row = tuple[str, str, str, str]
_MANY = 5  # options that two verbs share before the page lists them once
_WITH_POOL = re.compile(r"used by the discovery that reads Kubernetes(; )?")
"""Repeats the effect `with Kubernetes`."""

_EXITS = {
    ExitCode.OK: "Success, perhaps with warnings.",
    ExitCode.INTERNAL_ERROR: "A bug in endpick.",
    ExitCode.USAGE: "Wrong command line, or a file it names has the wrong content.",
    ExitCode.CONFIG_INVALID: "The configuration has mistakes, or cannot be read.",
    ExitCode.PLUGIN_UNUSABLE: "A plugin is missing, broken, incompatible or not as in the lock file.",
    ExitCode.FAILED: "The environment: a port in use, another file that cannot be read or written, a failed start or stop.",
    ExitCode.DIFFERENT: "`diff` found differences.",
    ExitCode.INTERRUPTED: "Stopped by Ctrl-C.",
}


_OUTPUT = """## Output

Tables fit the terminal, or 80 columns in a pipe or file: set `COLUMNS=200` for longer lines, or read `--format json`, whose schema
`endpick schema VERB` prints. Colours appear on terminals only, and not with `NO_COLOR`."""

_COMPLETION = r"""## Shell completion

Add the line of your shell to its start-up file. Verbs, options, plugin types (`describe`, `test`) and diagnostic codes (`explain`) are
completed; no plugin is imported.

| shell | file | line |
| --- | --- | --- |
| Bash | `~/.bashrc` | `eval "$(_ENDPICK_COMPLETE=bash_source endpick)"` |
| Zsh | `~/.zshrc` | `eval "$(_ENDPICK_COMPLETE=zsh_source endpick)"` |
| Fish | `~/.config/fish/completions/endpick.fish` | `_ENDPICK_COMPLETE=fish_source endpick \| source` |"""


def page() -> str:
    """The page."""
    context = click.Context(main, info_name="endpick")
    summary = table(("command", "does"), ((f"[`{name}`](#endpick-{name})", summary) for name, summary in _verbs().items()))
    return markdown_page(
        "Command line",
        "All commands of `endpick`, with options, defaults and exit codes.",
        summary,
        "## Exit codes",
        table(("code", "meaning"), ((str(int(exit_code)), _EXITS[exit_code]) for exit_code in ExitCode)),
        "If several apply, the smallest wins.",
        _OUTPUT,
        _COMPLETION,
        *(_verb(name, context) for name in _verbs()),
    )


def _verbs() -> dict[str, str]:
    """Those of the endpick distribution, with their summaries."""
    extras = (verb for verb in installed_verbs().verbs.values() if verb.table.is_builtin)
    return {name: summary for name, (_, summary) in HOST_VERBS.items()} | {verb.name: verb.summary for verb in extras}


def _verb(name: str, parent: click.Context) -> str:
    command = main.get_command(parent, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent)
    usage = f"```text\nendpick {name} {' '.join(command.collect_usage_pieces(context))}\n```"
    rows = _rows(name, parent)
    earlier = (_earlier(verb, rows, parent) for verb in itertools.takewhile(lambda verb: verb != name, _verbs()))
    verb, shared = next((found for found in earlier if len(found[1]) >= _MANY), ("", []))
    also = f"Options of [`{verb}`](#endpick-{verb}) that work here, too: {', '.join(row[0] for row in shared)}." if shared else ""
    text = "\n\n".join(map(_paragraph, inspect.cleandoc(command.help or "").split("\n\n")))
    shown = table(("option", "value", "default", "meaning"), (row for row in rows if row not in shared))
    return "\n\n".join(filter(None, (f"## `endpick {name}`", usage, text, shown, also, _llm_ds_flags() if name == "serve" else "")))


def _rows(name: str, parent: click.Context) -> list[_Row]:
    command = main.get_command(parent, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent)
    options = (parameter for parameter in command.get_params(context) if isinstance(parameter, click.Option))
    return [_option(option, context) for option in options if "--help" not in option.opts and not option.hidden]


def _earlier(verb: str, rows: list[_Row], parent: click.Context) -> tuple[str, list[_Row]]:
    """An earlier verb, and those of the rows that its table has already."""
    known = _rows(verb, parent)
    return verb, [row for row in rows if row in known]


def _llm_ds_flags() -> str:
    about = "`serve` accepts every flag of llm-d's endpoint picker, with one dash or two, and warns about those without effect."
    same = [flag.name for flag in FLAGS if flag.effect is Effect.SAME and not flag.note]
    rows = ((code(f"--{flag.name}"), flag.effect.value, _WITH_POOL.sub("", flag.note)) for flag in FLAGS if flag.name not in same)
    return "\n\n".join(
        (
            "### llm-d's flags",
            f"{about} The same as in llm-d: {listed(f'--{name}' for name in same)}.",
            table(("flag", "effect", "differences"), rows),
            "Flags that llm-d removed are refused; see [their successors](../explanation/compatibility.md#what-endpick-does-not-have).",
        )
    )


def _paragraph(text: str) -> str:
    """A paragraph that click does not rewrap becomes a block."""
    return f"```text\n{textwrap.dedent(text[2:]).strip()}\n```" if text.startswith("\b\n") else text


def _option(option: click.Option, context: click.Context) -> _Row:
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
