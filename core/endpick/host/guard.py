"""The import guard: what is locked is loaded from the bytes that were locked, for the life of the process.

Python's own import trusts the first file on the path and the byte code beside it. The guard stands before all other finders. It lets
them find, and then judges the file: a module of a guarded distribution is read once, its digest is compared, and those very bytes are
compiled. Byte code is neither read nor written. A file that no guarded distribution brings is refused under a guarded name.
"""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    BuiltinImporter,
    ExtensionFileLoader,
    FrozenImporter,
    ModuleSpec,
    SourceFileLoader,
)
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from endpick.files import open_regular
from endpick.host.record import Contents, matches

_log = logging.getLogger(__name__)

REPAIR = "remove the file that was found, or the entry of the import path that leads to it; see `endpick doctor`"
ACCEPT = "install what was locked, or accept what is installed with `endpick lock`"
_PYTHONS_LOADERS: tuple[object, ...] = (BuiltinImporter, FrozenImporter)
_STANDARD_LIBRARY = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))


class UntrustedModuleError(ImportError):
    """A module that may not be loaded, because its file is not what was locked."""

    def __init__(self, message: str, *, name: str, path: str, repair: str = REPAIR) -> None:
        super().__init__(f"{message}; {repair}", name=name, path=path)
        _log.error("import refused: %s; %s", message, repair)  # told here, because a plugin may catch it
        self.what = message
        self.repair = repair


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something cannot be guarded, and what to do."""

    what: str
    repair: str


@dataclass(frozen=True, slots=True)
class GuardedFile:
    """A file that may be loaded, if it still has this digest."""

    origin: str
    """The distribution that brings it: `acme-x 2.1`."""

    digest: str


class ImportGuard(MetaPathFinder):
    """Finds modules as Python would, and lets only locked files through under locked names."""

    def __init__(self) -> None:
        self._files: dict[str, GuardedFile] = {}
        self._modules: dict[str, str] = {}
        self._owned: dict[str, str] = {}
        self._shared: dict[str, str] = {}
        self._guarded: dict[tuple[str, str], Contents] = {}
        self._reserved: dict[str, str] = {}
        self._executed: set[str] = set()
        self._real_paths: dict[str, str] = {}
        self._asking: dict[tuple[int, str], list[object]] = {}
        """The finders that are being asked about a name in a thread."""

    def stand_first(self) -> None:
        """Take the first place among the finders, also where another finder has pushed in since."""
        if (
            type(sys.meta_path) is not list
        ):  # one of another class may put the guard elsewhere, or show finders to Python that it hides here
            sys.meta_path = list(sys.meta_path)
        if sys.meta_path[0] is not self:
            self.withdraw()
            sys.meta_path.insert(0, self)

    def withdraw(self) -> None:
        """Leave the finders; what was loaded stays loaded."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def admit(self, contents: Contents) -> Refusal | None:
        """Guard a distribution from now on; the reason where that cannot be done, because something of it was loaded before."""
        owned = owned_names(contents.modules)
        key = (contents.root, contents.distribution)
        before = self._guarded.get(key, contents)
        if before.fingerprint != contents.fingerprint and _loaded_within(owned_names(before.modules)):
            return Refusal("this process has loaded another state of it", "restart endpick to load what is installed now")
        # Later, code that was checked may make modules up; before that there is nothing that could have been.
        unseen = (
            self._unseen(owned)
            if key in self._guarded
            else next((name for name in _loaded_within(owned) if name not in self._executed), None)
        )
        if unseen is not None:
            place = getattr(sys.modules[unseen], "__file__", None) or "memory"
            return Refusal(
                f"its module '{unseen}' was imported from {place} before endpick could look at it",
                "find what imports it when Python starts: a .pth file, sitecustomize or usercustomize",
            )
        self._guarded[key] = contents
        self._know_anew()
        return None

    def reserve(self, names: Mapping[str, str]) -> None:
        """Load nothing under these names, each with its distribution, but what a guarded distribution brings; instead of those before."""
        self._reserved = dict(names)
        self._know_anew()

    def _know_anew(self) -> None:
        """Of a distribution that was guarded in another state before nothing is left."""
        for known in (self._files, self._modules, self._owned, self._shared):
            known.clear()
        self._owned.update(self._reserved)
        for contents in self._guarded.values():
            self._files.update((self._canonical(file), GuardedFile(contents.origin, digest)) for file, digest in contents.digests.items())
            self._modules.update(contents.modules)
            owned, shared = _names(contents.modules)
            self._owned.update(dict.fromkeys(owned, contents.origin))
            self._shared.update(dict.fromkeys(shared, contents.origin))

    def unseen(self, contents: Contents) -> str | None:
        """A module of a guarded distribution that was loaded past the guard, as another import hook can bring about."""
        return self._unseen(owned_names(contents.modules))

    def _unseen(self, owned: Collection[str]) -> str | None:
        return next((name for name in _loaded_within(owned) if self._is_unseen(name, sys.modules[name])), None)

    def _is_unseen(self, name: str, module: ModuleType) -> bool:
        spec = getattr(module, "__spec__", None)  # a module that code makes up has none, and one with a second name has its first there
        first = spec.name if spec is not None and spec.has_location else None
        if name in self._modules and name not in self._executed and (first is None or sys.modules.get(first) is not module):
            return True  # it stands where a file of the distribution belongs, whatever it says of itself
        return spec is not None and first is not None and first not in self._executed and not _is_pythons_own(spec, first)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """What the other finders find, if it may be loaded.

        Raises:
            UntrustedModuleError: it may not.
            ModuleNotFoundError: they find nothing under a guarded name. Python would ask them once more, and judge no answer.
        """
        spec = self._found_by_others(fullname, path, target)
        if spec is not None:
            return self._judged(spec, fullname)
        if self._owner_of(fullname) is not None:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None

    def _judged(self, spec: ModuleSpec, fullname: str) -> ModuleSpec:
        file = spec.origin if spec.has_location else None
        guarded = None if file is None else self._files.get(self._canonical(file))
        if file is not None and guarded is not None and self._is_in_place(file, fullname):
            return self._guarded_spec(spec, fullname, file, guarded)
        owner = self._owner_of(fullname)
        if owner is None or _is_pythons_own(spec, fullname):
            return spec
        if self._is_codeless(spec, fullname):
            return _namespace(spec, fullname)
        if file is not None and file == self._modules.get(fullname):
            raise self._refusal(f"'{fullname}' of {owner} is not what the lock file has: {file}", spec, ACCEPT)
        raise self._refusal(f"'{fullname}' of {owner} would be loaded from {file or spec.origin}, {self._expected(fullname)}", spec)

    def _is_in_place(self, file: str, fullname: str) -> bool:
        """Whether a locked file stands where the module of that name does: what was reviewed as one module is not run as another."""
        expected = self._modules.get(fullname)
        return expected is None or _stem(self._canonical(file)) == _stem(self._canonical(expected))

    def _owner_of(self, fullname: str) -> str | None:
        return self._shared.get(fullname) or _within(fullname, self._owned)

    def _canonical(self, file: str) -> str:
        """The file by the real path of its directory: import paths lead to one directory in several ways.

        Real paths are kept, because every import of the process asks. One that has changed meanwhile does no harm: digests are compared.
        """
        directory, _, name = file.rpartition(os.sep)
        if directory not in self._real_paths:
            self._real_paths[directory] = os.path.realpath(directory)
        return f"{self._real_paths[directory]}{os.sep}{name}"

    def executed(self, name: str) -> None:
        """Remember that a module passed."""
        self._executed.add(name)

    def _found_by_others(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        """What the first of the others finds; a finder that asks in turn, or imports the name itself, is not asked again meanwhile."""
        here = (threading.get_ident(), fullname)
        asking = self._asking.setdefault(here, [self])
        try:
            for finder in sys.meta_path:
                find_spec = getattr(finder, "find_spec", None)  # a very old finder has none, and Python leaves it out as well
                if find_spec is None or any(finder is other for other in asking):
                    continue
                asking.append(finder)
                try:
                    spec: ModuleSpec | None = find_spec(fullname, path, target)
                finally:
                    asking.pop()
                if spec is not None:
                    return spec
            return None
        finally:
            if len(asking) == 1:
                self._asking.pop(here, None)

    def _guarded_spec(self, spec: ModuleSpec, name: str, file: str, guarded: GuardedFile) -> ModuleSpec:
        loader: Loader
        if file.endswith(".py"):
            loader = _CheckedSource(name, file, guarded, self)
        elif file.endswith(tuple(EXTENSION_SUFFIXES)):
            loader = _CheckedExtension(name, file, guarded, self)
        else:
            raise self._refusal(f"'{name}' of {guarded.origin} would be loaded from {file}, which is neither source nor extension", spec)
        made = spec_from_file_location(name, file, loader=loader, submodule_search_locations=spec.submodule_search_locations)
        assert made is not None
        made.cached = None
        return made

    def _is_codeless(self, spec: ModuleSpec, fullname: str) -> bool:
        """Whether it is a namespace package where none of the guarded files is expected: it runs no code, and what is in it is judged."""
        return spec.submodule_search_locations is not None and not spec.has_location and fullname not in self._modules

    def _expected(self, fullname: str) -> str:
        expected = self._modules.get(fullname)
        if expected is not None:
            return f"expected {expected}"
        return "expected a namespace package" if fullname in self._shared else "which no RECORD of a locked distribution lists"

    @staticmethod
    def _refusal(message: str, spec: ModuleSpec, repair: str = REPAIR) -> UntrustedModuleError:
        return UntrustedModuleError(message, name=spec.name, path=spec.origin or "", repair=repair)


class _CheckedSource(SourceFileLoader):
    """Compiles exactly the bytes whose digest it has compared."""

    def __init__(self, name: str, path: str, guarded: GuardedFile, guard: ImportGuard) -> None:
        super().__init__(name, path)
        self._guarded = guarded
        self._guard = guard

    def get_code(self, fullname: str) -> CodeType:
        content = _content(self.path)
        _check(content, fullname, self.path, self._guarded)
        code = compile(content, self.path, "exec", dont_inherit=True)
        self._guard.executed(fullname)
        return code


class _CheckedExtension(ExtensionFileLoader):
    """Loads a shared library whose digest was right a moment before: the operating system reads the file once more."""

    def __init__(self, name: str, path: str, guarded: GuardedFile, guard: ImportGuard) -> None:
        super().__init__(name, path)
        self._guarded = guarded
        self._guard = guard

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        _check(_content(self.path), spec.name, self.path, self._guarded)
        self._guard.executed(spec.name)
        return super().create_module(spec)


def _check(content: bytes, name: str, path: str, guarded: GuardedFile) -> None:
    if not matches(content, guarded.digest):
        raise UntrustedModuleError(
            f"'{name}' of {guarded.origin} has changed since it was locked: {path}", name=name, path=path, repair=ACCEPT
        )


def _content(path: str) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read()
    except OSError:  # it has gone, or is no file any more
        return b""


def _namespace(spec: ModuleSpec, name: str) -> ModuleSpec:
    """A namespace package as Python makes it, whatever loader the finder has for it."""
    made = ModuleSpec(name, None, is_package=True)
    made.submodule_search_locations = spec.submodule_search_locations
    return made


def _stem(file: str) -> str:
    """A file without what follows the name of its module: a module may be there as source and compiled."""
    directory, _, name = file.rpartition(os.sep)
    return f"{directory}{os.sep}{name.partition('.')[0]}"


def _is_pythons_own(spec: ModuleSpec, name: str) -> bool:
    """Whether it is a module of the standard library, also where a distribution brings one of its name."""
    if name.partition(".")[0] not in sys.stdlib_module_names:
        return False
    if not spec.has_location:
        return any(spec.loader is loader for loader in _PYTHONS_LOADERS)
    place = Path(spec.origin or "")
    inside = any(place.is_relative_to(library) for library in _STANDARD_LIBRARY)
    return inside and not {"site-packages", "dist-packages"} & set(place.parts)


def owned_names(modules: Mapping[str, str]) -> set[str]:
    """Of a distribution's modules, given with their files, those names under which everything is its own."""
    return _names(modules)[0]


def _names(modules: Mapping[str, str]) -> tuple[set[str], set[str]]:
    """Of a distribution's modules those names under which everything is its own, and the names of namespace packages above them."""
    packages = {name for name, file in modules.items() if Path(file).name.startswith("__init__.")}
    owned, shared = set(), set()
    for name in modules:
        above = _parents(name)
        top = next((parent for parent in above if parent in packages), name)
        owned.add(top)
        shared.update(_parents(top))
    return owned, shared - owned


def _loaded_within(owned: Collection[str]) -> list[str]:
    """The loaded modules that are owned, sorted; without those of Python itself under the names that Python gives them."""
    top_level = {name.partition(".")[0] for name in owned}  # there are many other modules, so most are told apart by this alone
    loaded = [(name, module) for name, module in [*sys.modules.items()] if name.partition(".")[0] in top_level and _within(name, owned)]
    return sorted(name for name, module in loaded if not _is_pythons_module(module, name))


def _is_pythons_module(module: ModuleType, name: str) -> bool:
    # By the name that it is imported by: what a module says of itself its forger may have written.
    spec = getattr(module, "__spec__", None)
    return spec is not None and _is_pythons_own(spec, name)


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _within(name: str, owned: Collection[str]) -> str | None:
    """The first of the name and its parents that is owned; from a mapping what stands there for it."""
    found = next((each for each in (*_parents(name), name) if each in owned), None)
    return owned[found] if found is not None and isinstance(owned, Mapping) else found


GUARD = ImportGuard()
"""The guard of this process."""
