"""Is what is installed what was locked? Judged before anything is imported; what passes is guarded from then on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from endpick.diagnostics import Code, Diagnostic
from endpick.host.contents import contents_of, listed, owner_of
from endpick.host.discovery import Candidate
from endpick.host.guard import ACCEPT, REPAIR, ImportGuard
from endpick.host.locating import locate
from endpick.host.lock import Lock, LockedPlugin, locked
from endpick.host.metadata import normalise
from endpick.host.record import Contents
from endpick.host.resolution import Reference


@dataclass
class LockCheck:
    """A lock, and what was found of it so far: each distribution is read once.

    With a `guard` everything that passes is admitted to it, so that what is imported later is what was judged here.
    """

    lock: Lock
    guard: ImportGuard | None = None
    _contents: dict[str, Contents] = field(default_factory=dict)
    _altered: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _admitted: set[str] = field(default_factory=set)

    def plugin(self, reference: Reference, candidate: Candidate) -> Diagnostic | None:
        """How an installed plugin type differs from what was locked; None when it does not."""
        if any(plugin.type == candidate.type for plugin in self.lock.plugins):
            return self._check(reference, candidate, self.lock.plugins)
        # A type that a hook object offers has no entry point to pin; it is pinned with the distribution of its hook object.
        pinned = [replace(hook, type=candidate.type, target=candidate.target) for hook in self.lock.hooks if _same(hook, candidate)]
        return self._check(reference, candidate, pinned, has_entry_point=False)

    def hook_object(self, reference: Reference, candidate: Candidate) -> Diagnostic | None:
        """The same for a hook object."""
        return self._check(reference, candidate, self.lock.hooks)

    def loaded(self, reference: Reference, candidate: Candidate) -> Diagnostic | None:
        """Whether a module of the candidate's distribution was loaded past the guard; None when all went through it."""
        contents = self._contents_of(candidate)
        name = None if self.guard is None else self.guard.unseen(contents.to_guard())
        if name is None:
            return None
        message = f"'{name}' of {contents.origin} was loaded by another import hook, where endpick could not check it"
        return _drift(reference, candidate, message, repair="remove what installs the import hook")

    def differences(self, candidates: Sequence[Candidate], hook_objects: Sequence[Candidate] = ()) -> tuple[Diagnostic, ...]:
        """Everything locked that is not installed as it was locked."""
        usable = [one for one in candidates if one.is_valid and one.speaks_our_api and not one.shadowed_by]
        sections = ((self.lock.plugins, usable), (self.lock.hooks, hook_objects))
        found = (self._difference(plugin, section, offers) for section, offers in sections for plugin in section)
        return tuple(fault for fault in found if fault is not None)

    def _difference(self, plugin: LockedPlugin, section: Sequence[LockedPlugin], installed: Sequence[Candidate]) -> Diagnostic | None:
        reference = Reference(plugin.type)
        offers = [one for one in installed if one.type == plugin.type and _same(plugin, one)]
        if offers:
            return self._check(reference, offers[0], section)
        return reference.diagnostic(
            Code.E0308,
            f"'{plugin.type}' is locked to {plugin.distribution} {plugin.version}, which does not offer it here",
            help=f"run `pip install {plugin.distribution}=={plugin.version}`, or accept what is installed with `endpick lock`",
        )

    def _check(
        self, reference: Reference, candidate: Candidate, locked_before: Sequence[LockedPlugin], *, has_entry_point: bool = True
    ) -> Diagnostic | None:
        of_type = [plugin for plugin in locked_before if plugin.type == candidate.type]
        same = [plugin for plugin in of_type if _same(plugin, candidate)]
        if not of_type:
            return _drift(reference, candidate, f"'{candidate.type}' from {candidate.origin} is not in the lock file")
        if not same:
            pinned = ", ".join(f"{plugin.distribution} {plugin.version}" for plugin in of_type)
            return _drift(reference, candidate, f"'{candidate.type}' is locked to {pinned}, but {candidate.origin} provides it")
        contents = self._contents_of(candidate)
        misplaced = self._misplaced(reference, candidate, contents) if has_entry_point else None
        if misplaced is not None:
            return misplaced
        changes = _changes(same[0], locked(candidate, contents))
        if changes:
            return _drift(
                reference, candidate, f"'{candidate.type}' from {candidate.distribution} has changed since it was locked", changes
            )
        return self._intact(reference, candidate, contents)

    def guard_all(self, candidates: Iterable[Candidate]) -> tuple[Diagnostic, ...]:
        """Guard every installed distribution that the lock names, also those of which no type is used: others may import them.

        What differs from the lock may not be imported at all; why is told where a configuration uses it.

        Returns:
            Why some cannot be guarded, such as a module that was loaded before: what imports it would get that one.
        """
        if self.guard is None:
            return ()
        self.guard.stand_first()
        self.guard.reserve({name: one.distribution for one in self.lock.modules for name in one.names})
        digests = {normalise(one.distribution): one.digest for one in (*self.lock.plugins, *self.lock.hooks)}
        refused: dict[str, Diagnostic] = {}
        for candidate in candidates:
            digest = digests.get(normalise(candidate.distribution))
            if digest is None or candidate.shadowed_by:
                continue
            met = candidate.metadata_path in self._contents
            own = None if met else _as_locked(self._contents_of(candidate), digest)
            for contents in (own, self._locked_owner(candidate)):
                fault = None if contents is None else self._admit(self.guard, Reference(candidate.type), candidate, contents)
                if fault is not None:
                    refused.setdefault(fault.message, fault)
        return tuple(refused.values())

    def _locked_owner(self, candidate: Candidate) -> Contents | None:
        """The distribution to which an entry point leads, where that is another one."""
        if not self.lock.owners or candidate.module in self._contents_of(candidate).modules:
            return None
        owner = owner_of(candidate.module)
        digests = {normalise(one.distribution): one.digest for one in self.lock.owners}
        digest = None if owner is None else digests.get(normalise(owner.distribution))
        return None if owner is None or digest is None else _as_locked(owner, digest)

    @staticmethod
    def _admit(guard: ImportGuard, reference: Reference, candidate: Candidate, contents: Contents) -> Diagnostic | None:
        reason = guard.admit(contents)
        if reason is None:
            return None
        return _drift(reference, candidate, f"{contents.origin} cannot be checked: {reason.what}", repair=reason.repair)

    def _misplaced(self, reference: Reference, candidate: Candidate, contents: Contents) -> Diagnostic | None:
        """Why the entry point does not lead to a locked file; None when it does, in its own distribution or in another locked one."""
        found = locate(candidate.module)
        if found is None or contents.brings(found):
            return None
        expected = contents.modules.get(candidate.module)
        if expected is not None and str(found) == expected:
            return _drift(reference, candidate, f"RECORD of {contents.origin} does not give {found} one digest")
        top = candidate.module.partition(".")[0]
        if expected is not None or any(name.partition(".")[0] == top for name in contents.modules):
            return _shadowed(reference, candidate, found, expected or f"a file of {contents.origin} in {contents.root}")
        owner = owner_of(candidate.module)
        if owner is None:
            return _shadowed(reference, candidate, found, f"a file of {contents.origin} in {contents.root}")
        if not any(
            (normalise(one.distribution), one.digest) == (normalise(owner.distribution), owner.fingerprint) for one in self.lock.owners
        ):
            message = f"'{candidate.type}' from {candidate.origin} leads to {found}, which belongs to {owner.origin}"
            return _drift(reference, candidate, f"{message}; the lock file does not have that as it is here")
        return self._intact(reference, candidate, owner)  # its own distribution is judged after this

    def _intact(self, reference: Reference, candidate: Candidate, contents: Contents) -> Diagnostic | None:
        """Whether the files are what the RECORD says; what is as it was locked is guarded."""
        altered = self._altered.get(contents.root + contents.fingerprint)
        if altered is None:
            altered = self._altered[contents.root + contents.fingerprint] = contents.altered()
        if altered:
            return _drift(reference, candidate, f"files of {contents.origin} were changed after it was installed: {listed(altered)}")
        if self.guard is None:
            return None
        self.guard.stand_first()
        if contents.fingerprint in self._admitted:
            return None
        fault = self._admit(self.guard, reference, candidate, contents.to_guard())
        self._admitted |= {contents.fingerprint} if fault is None else set()
        return fault

    def _contents_of(self, candidate: Candidate) -> Contents:
        if candidate.metadata_path not in self._contents:
            self._contents[candidate.metadata_path] = contents_of(candidate)
        return self._contents[candidate.metadata_path]


def _as_locked(contents: Contents, digest: str) -> Contents:
    """What may be imported of a distribution that was locked with this digest: nothing when it has another one."""
    return contents.to_guard() if contents.fingerprint == digest else contents.distrusted()


def _same(plugin: LockedPlugin, candidate: Candidate) -> bool:
    return normalise(plugin.distribution) == normalise(candidate.distribution)


def _changes(then: LockedPlugin, now: LockedPlugin) -> tuple[str, ...]:
    changes = [
        f"the {field} was {before}, now it is {after}"
        for field, before, after in (("version", then.version, now.version), ("entry point", then.target, now.target))
        if before != after
    ]
    if then.digest != now.digest and not changes:
        changes.append(f"the version is still {now.version}, but other files are installed: the digest was {then.digest}, now {now.digest}")
    return tuple(changes)


def _shadowed(reference: Reference, candidate: Candidate, found: Path, expected: str) -> Diagnostic:
    message = f"'{candidate.module}' of {candidate.origin} would be loaded from {found}, expected {expected}"
    return _drift(reference, candidate, message, repair=REPAIR)


def _drift(
    reference: Reference,
    candidate: Candidate,
    message: str,
    notes: tuple[str, ...] = (),
    *,
    repair: str = ACCEPT,
) -> Diagnostic:
    return reference.diagnostic(Code.E0308, message, candidate, annotation="differs from the lock file", help=repair, notes=notes)
