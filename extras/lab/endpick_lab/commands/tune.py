"""`endpick tune`: searches better weights and parameters on a trace."""

from __future__ import annotations

from pathlib import Path

import click

from endpick.cli.console import fail, plan_or_exit
from endpick.cli.options import takes
from endpick_lab.commands.simulate import TRACE_OPTION, ScenarioOptions, explained_failures, progress_bars
from endpick_lab.tuning import OBJECTIVES, Document, Tuned, TuningError, tune


@click.command("tune", context_settings={"show_default": True})
@click.argument("config", type=click.Path(path_type=Path))
@TRACE_OPTION
@takes(ScenarioOptions)
@click.option("--objective", type=click.Choice(list(OBJECTIVES)), default="ttft-p90", help="What to make small.")
@click.option("--vary", multiple=True, metavar="PLUGIN.PARAMETER=LOW..HIGH", help="Search a parameter, too; may be repeated.")
@click.option("--trials", type=click.IntRange(1, 10_000), default=40, help="Simulations of the first half of the trace.")
def command(config: Path, options: ScenarioOptions, objective: str, vary: tuple[str, ...], trials: int) -> None:
    """Search weights and parameters of CONFIG that serve a trace better, and print the changed document.

    The search sees the first half of the trace only. The second half, drawn five times, decides if the result is better: the ratio of the
    objective to that of CONFIG is printed with its 95 % interval. Failed requests count ten times.

    Needs endpick[simulate].
    """
    plan_or_exit(str(config), as_json=False)
    document = Document(config.read_text(encoding="utf-8"))
    try:
        dimensions = [*document.weights(), *(document.parameter(text) for text in vary)]
        with explained_failures(options.trace), progress_bars(["searching"], trials) as progress:
            tuned = tune(document, dimensions, options.scenario(), objective, trials, lambda done: progress(0, done))
    except TuningError as mistake:
        raise click.UsageError(str(mistake)) from mistake
    except ImportError:
        fail("searching needs optuna\nhelp: pip install 'endpick[simulate]'")
    click.echo(_verdict(tuned, objective), err=True)
    click.echo(tuned.text, nl=False)


def _verdict(tuned: Tuned, objective: str) -> str:
    values = "".join(f"  {name}: {value:g}\n" for name, value in tuned.values.items())
    interval = f"{tuned.ratio:.3f} times that of the old document, 95 % interval {tuned.low:.3f} to {tuned.high:.3f}"
    if tuned.high < 1:
        verdict = "better"
    elif tuned.low > 1:
        verdict = "WORSE, although better in the search: keep the old one"
    else:
        verdict = "no difference that can be told from chance: keep the old one"
    return f"{values}{objective} on the half that was searched: {tuned.searched:.3f} times\non the other half: {interval}: {verdict}"
