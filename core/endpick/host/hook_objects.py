"""Hook objects: which are installed, and how the ones that a configuration names are loaded and checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import pluggy

from endpick.api.hooks import PROJECT_NAME, HookSpecs
from endpick.diagnostics import Code, Diagnostic, did_you_mean
from endpick.host.discovery import Candidate, Identity, candidate_of
from endpick.host.failures import CALL_FAILURES, is_the_hosts
from endpick.host.importing import describe, import_target, trace_notes
from endpick.host.metadata import effective, read_relevant
from endpick.host.resolution import Policy, Reference, check_distribution, from_distribution
from endpick.installation import API_MAJOR, HOOKS_ENTRY_POINT_GROUP

if TYPE_CHECKING:
    from endpick.host.lock_check import LockCheck

HOOKS = tuple(name for name in vars(HookSpecs) if name.startswith("endpick_"))
_AWAITED = ("endpick_startup", "endpick_shutdown", "endpick_config_reload")


def discover_hook_objects(path: Sequence[str] | None = None) -> tuple[Candidate, ...]:
    """All hook objects on the import path (`sys.path` unless given), sorted; `Candidate.type` is the hook object's name."""
    copies = read_relevant(HOOKS_ENTRY_POINT_GROUP, path)
    found = [
        candidate_of(entry_point, API_MAJOR, copy, Identity.of(copy, copies, path))
        for copy in effective(copies).values()
        for entry_point in copy.entry_points
        if entry_point.group == HOOKS_ENTRY_POINT_GROUP
    ]
    return tuple(sorted(found))


def load_hook_object(
    reference: Reference, candidates: Sequence[Candidate], policy: Policy, lock: LockCheck | None
) -> tuple[Candidate, object] | Diagnostic:
    """The object that a `hooks:` entry names, and who offers it."""
    candidate = _resolve(reference, candidates)
    if isinstance(candidate, Diagnostic):
        return candidate
    forbidden = check_distribution(reference, candidate, policy)
    if forbidden is not None:
        return forbidden
    drift = None if lock is None else lock.hook_object(reference, candidate)
    if drift is not None:
        return drift
    imported = import_target(reference, candidate)
    unchecked = None if lock is None else lock.loaded(reference, candidate)
    if unchecked is not None:
        return unchecked
    if isinstance(imported, Diagnostic):
        return imported if imported.code is Code.E0308 else _unloadable(reference, candidate, imported.message, imported.notes)
    try:
        return candidate, imported.value() if inspect.isclass(imported.value) else imported.value
    except CALL_FAILURES as error:
        if is_the_hosts(error):
            raise
        return _unloadable(reference, candidate, f"its constructor raised {describe(error)}", trace_notes(error))


def hook_faults(reference: Reference, candidate: Candidate, hook_object: object) -> tuple[Diagnostic, ...]:
    """Implementations that no hook, or not this hook, would ever call; and an object that implements nothing."""
    manager = pluggy.PluginManager(PROJECT_NAME)
    faults: list[Diagnostic] = []
    implemented = False
    for name in dir(hook_object):
        options = manager.parse_hookimpl_opts(hook_object, name)
        if options is not None:
            implemented = True
            hook = options.get("specname") or name
            faults.extend(_implementation_faults(reference, candidate, hook, getattr(hook_object, name), is_wrapper=_is_wrapper(options)))
    if not implemented:
        message = "it implements no hook; its methods need the mark `@hookimpl` from endpick.api"
        return (_unloadable(reference, candidate, message),)
    return tuple(faults)


def _is_wrapper(options: pluggy.HookimplOpts) -> bool:
    return bool(options.get("wrapper") or options.get("hookwrapper"))


def _implementation_faults(
    reference: Reference, candidate: Candidate, hook: str, function: object, *, is_wrapper: bool
) -> Iterable[Diagnostic]:
    assert callable(function)
    if hook not in HOOKS:
        yield reference.diagnostic(
            Code.E0701,
            f"the hook object '{reference.type}' from {candidate.origin} implements `{hook}`, which is no hook",
            candidate,
            help=did_you_mean(hook, HOOKS) or f"the hooks are {', '.join(HOOKS)}",
            notes=(_defined_at(function),),
        )
        return
    problem = _signature_problem(hook, function, is_wrapper=is_wrapper)
    if problem is not None:
        wrong, repair = problem
        yield reference.diagnostic(
            Code.E0702,
            f"`{hook}` of the hook object '{reference.type}' from {candidate.origin} {wrong}",
            candidate,
            help=repair,
            notes=(_defined_at(function),),
        )


def _signature_problem(hook: str, function: Callable[..., object], *, is_wrapper: bool) -> tuple[str, str] | None:
    """What is wrong with how an implementation is defined, and what would be right."""
    accepted = tuple(inspect.signature(getattr(HookSpecs, hook)).parameters)[1:]
    unknown = [name for name in inspect.signature(function).parameters if name not in accepted]
    possible = f"it may take {', '.join(f'`{name}`' for name in accepted)}" if accepted else "it takes no arguments"
    if unknown:
        return f"asks for {', '.join(f'`{name}`' for name in unknown)}", possible
    if is_wrapper:
        return "is a wrapper, which endpick does not call", possible
    if inspect.iscoroutinefunction(function) and hook not in _AWAITED:
        return "is `async def`, but endpick does not await it", f"write it as a plain `def`; awaited are {', '.join(_AWAITED)}"
    return None


def _defined_at(function: object) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return "defined elsewhere" if code is None else f"defined at {code.co_filename}:{code.co_firstlineno}"


def _resolve(reference: Reference, candidates: Sequence[Candidate]) -> Candidate | Diagnostic:
    offers = from_distribution(reference, [candidate for candidate in candidates if candidate.type == reference.type])
    if len(offers) == 1:
        return offers[0]
    if offers:
        choice = " or ".join(f"`from: {offer.distribution}`" for offer in offers)
        return reference.diagnostic(
            Code.E0705, f"several distributions offer the hook object '{reference.type}'", help=f"say which one you want with {choice}"
        )
    return reference.diagnostic(
        Code.E0705,
        f"no installed distribution offers the hook object '{reference.type}'",
        help=did_you_mean(reference.type, (candidate.type for candidate in candidates)) or "`endpick doctor` lists those installed",
    )


def _unloadable(reference: Reference, candidate: Candidate, reason: str, notes: tuple[str, ...] = ()) -> Diagnostic:
    return reference.diagnostic(
        Code.E0705,
        f"the hook object '{reference.type}' from {candidate.origin} cannot be loaded: {reason}",
        candidate,
        help=f"this is a fault of {candidate.distribution}; report it to its author, or remove the entry from `hooks:`",
        notes=notes,
    )
