"""Loads the hook objects that a configuration names and checks their hook implementations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence

import pluggy

from endpick.api.hooks import PROJECT_NAME, HookSpecs
from endpick.diagnostics import Code, Diagnostic, did_you_mean
from endpick.host.discovery import Candidate
from endpick.host.failures import PLUGIN_ERRORS
from endpick.host.importing import describe, import_target, trace_notes
from endpick.host.lock import LockCheck
from endpick.host.resolution import Policy, Reference, check_distribution, from_distribution

HOOKS = tuple(name for name in vars(HookSpecs) if name.startswith("endpick_"))
_AWAITED = ("endpick_startup", "endpick_shutdown", "endpick_config_reload")


def load_hook_object(
    reference: Reference, candidates: Sequence[Candidate], policy: Policy, lock: LockCheck
) -> tuple[Candidate, object] | Diagnostic:
    """The object that a `hooks:` entry names, with its entry point."""
    candidate = _resolve(reference, candidates)
    if isinstance(candidate, Diagnostic):
        return candidate
    forbidden = check_distribution(reference, candidate, policy) or lock.fault(reference, candidate)
    if forbidden is not None:
        return forbidden
    imported = import_target(reference, candidate)
    if isinstance(imported, Diagnostic):
        return _unloadable(reference, candidate, imported.message, imported.notes)
    try:
        return candidate, imported.value() if inspect.isclass(imported.value) else imported.value
    except PLUGIN_ERRORS as error:
        return _unloadable(reference, candidate, f"its constructor raised {describe(error)}", trace_notes(error))


def hook_faults(reference: Reference, candidate: Candidate, hook_object: object) -> tuple[Diagnostic, ...]:
    """Every implementation that endpick could not call, and an object without implementations."""
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
    return "defined outside Python code" if code is None else f"defined at {code.co_filename}:{code.co_firstlineno}"


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
