"""Explains recorded decisions: the plugin that decided, and the weight changes that flip the pick."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from endpick.requests.document import DecisionOutput, ProfileRun, ScorerStep

EQUAL = 1e-9
_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Flip:
    """The smallest weight change that makes another endpoint win; `to` is None if no weight of 0 or more does."""

    scorer: str
    weight: float
    to: float | None
    winner: str = ""


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason for the result of a profile run; `decisive` is an instance, empty for chance."""

    sentence: str
    decisive: str = ""
    flips: tuple[Flip, ...] = ()


def reason_of(decision: DecisionOutput, run: ProfileRun) -> Reason:
    """Return the reason why a profile run picked its endpoint."""
    reason = _reason(decision, run)
    failed = [scorer.instance for scorer in run.scorers if scorer.problem]
    return replace(reason, sentence=f"{reason.sentence}; {', '.join(failed)} failed and counted for nothing") if failed else reason


def _reason(decision: DecisionOutput, run: ProfileRun) -> Reason:
    if not run.picked:
        return Reason(run.failure)
    winner = run.picked[0]
    if len(run.candidates) == 1:
        return _only_candidate(decision, run, winner)
    place = run.candidates.index(winner)
    best = max(run.totals)
    equals = [name for name, total in zip(run.candidates, run.totals, strict=True) if abs(total - best) <= EQUAL]
    if winner not in equals:
        leader = equals[0]
        return Reason(
            f"{run.picker} chose {winner}, although {leader} had the best total ({best:.3f} against {run.totals[place]:.3f})", run.picker
        )
    if len(equals) > 1:
        return Reason(f"{run.picker} chose {winner} by chance among {len(equals)} endpoints with equal totals", flips=flips_of(run))
    second = max((index for index in range(len(run.totals)) if index != place), key=lambda index: run.totals[index])
    margin = best - run.totals[second]
    decisive = max(run.scorers, key=lambda scorer: scorer.weighted[place] - scorer.weighted[second])
    share = decisive.weighted[place] - decisive.weighted[second]
    return Reason(
        f"{decisive.instance} decided: it gave {winner} {share:.3f} more than {run.candidates[second]}, which lost by {margin:.3f} in all",
        decisive.instance,
        flips_of(run),
    )


def _only_candidate(decision: DecisionOutput, run: ProfileRun, winner: str) -> Reason:
    for step in reversed(run.filters):
        dropped = [name for name in step.given if name not in step.kept]
        if dropped:
            return Reason(f"filter {step.instance} left {winner} only; it dropped {', '.join(dropped)}", step.instance)
    if decision.removed:
        last = decision.removed[-1]
        return Reason(f"{last.instance} left {winner} only; it removed {', '.join(last.endpoints)} before scheduling", last.instance)
    return Reason(f"{winner} is the only endpoint of the pool")


def flips_of(run: ProfileRun) -> tuple[Flip, ...]:
    """Return, for each scorer that answered, the smallest weight change that makes another endpoint win."""
    winner = run.candidates.index(run.picked[0])
    return tuple(_flip(run, winner, scorer) for scorer in run.scorers if scorer.weight and not scorer.problem)


def _flip(run: ProfileRun, winner: int, scorer: ScorerStep) -> Flip:
    scores = [weighted / scorer.weight for weighted in scorer.weighted]
    wanted: list[float] = []
    for place, total in enumerate(run.totals):
        gain = scores[place] - scores[winner]
        if abs(gain) > EQUAL:
            wanted.append(scorer.weight + (run.totals[winner] - total) / gain)
    for weight in sorted(wanted, key=lambda weight: abs(weight - scorer.weight)):
        for rounded in _beyond(scorer.weight, weight):
            totals = [total + (rounded - scorer.weight) * score for total, score in zip(run.totals, scores, strict=True)]
            leader = max(range(len(totals)), key=lambda place: totals[place])
            behind = sum(total < totals[leader] - EQUAL for total in totals)
            if rounded >= 0 and leader != winner and behind == len(totals) - 1:
                return Flip(scorer.instance, scorer.weight, rounded, run.candidates[leader])
    return Flip(scorer.instance, scorer.weight, None)


def _beyond(weight: float, limit: float) -> Iterator[float]:
    """Short numbers slightly further from `weight` than `limit`."""
    step = 10.0**-_DIGITS * max(abs(limit), abs(limit - weight), 10.0**-_DIGITS)
    direction = 1.0 if limit >= weight else -1.0
    for digits in range(_DIGITS + 1):
        yield round(limit + direction * step, digits)
    yield limit + direction * step


@dataclass(frozen=True, slots=True)
class PickHistory:
    """The results of one endpoint in recorded decisions."""

    decisions: int
    picked: int
    losses: tuple[tuple[str, int], ...]  # reason and count, the most frequent first


def pick_history(endpoint: str, decisions: Sequence[DecisionOutput]) -> PickHistory:
    """Count how often an endpoint was picked, and the reasons why it was not."""
    losses: dict[str, int] = {}
    picked = counted = 0
    for decision in decisions:
        for run in decision.runs[:1]:
            counted += 1
            if run.picked and run.picked[0] == endpoint:
                picked += 1
            else:
                reason = loss_of(endpoint, decision, run)
                losses[reason] = losses.get(reason, 0) + 1
    return PickHistory(counted, picked, tuple(sorted(losses.items(), key=lambda loss: -loss[1])))


def loss_of(endpoint: str, decision: DecisionOutput, run: ProfileRun) -> str:
    """Return the reason why a profile run did not pick an endpoint."""
    for removal in decision.removed:
        if endpoint in removal.endpoints:
            return f"{removal.instance} left it out before scheduling"
    for step in run.filters:
        if endpoint in step.given and endpoint not in step.kept:
            return f"filter {step.instance} dropped it"
    if endpoint not in run.candidates:
        return "it was not in the pool"
    if not run.picked:
        return "no endpoint was picked"
    mine, winner = run.candidates.index(endpoint), run.candidates.index(run.picked[0])
    if not run.scorers or run.totals[winner] - run.totals[mine] <= EQUAL:
        return f"{run.picker} chose another with the same total" if run.scorers else f"{run.picker} chose another"
    worst = max(run.scorers, key=lambda scorer: scorer.weighted[winner] - scorer.weighted[mine])
    return f"{worst.instance} rated another higher"
