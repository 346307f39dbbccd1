"""Code that takes the place of a locked module before endpick looks: on the path, by finders, as byte code."""

from __future__ import annotations

import asyncio
import importlib.util
import marshal
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.locked_site import Site, Way, site_of, tried


def a_package_on_pythonpath(site: Site) -> None:
    site.write(site.shadow / "parts" / "__init__.py")


def a_module_on_a_relative_pythonpath(site: Site) -> None:
    site.write(site.folder / "near" / "parts.py")
    site.environment["PYTHONPATH"] = "near"


def a_module_in_the_working_directory_that_pythonpath_means(site: Site) -> None:
    site.write(site.folder / "parts.py")
    site.environment["PYTHONPATH"] = f":{site.root}"


def a_package_behind_a_link_on_pythonpath(site: Site) -> None:
    site.write(site.root / "real" / "parts" / "__init__.py")
    (site.shadow / "parts").symlink_to(site.root / "real" / "parts")


def a_zip_with_byte_code_alone(site: Site) -> None:
    archive = site.root / "shadow.zip"
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("parts.pyc", byte_code(site.evil(), "parts.py"))
    site.environment["PYTHONPATH"] = str(archive)


def an_egg_that_a_path_file_puts_first(site: Site) -> None:
    egg = site.packages / "acme_parts-9.0-py3.egg"
    with zipfile.ZipFile(egg, "w") as written:
        written.writestr("parts/__init__.py", site.evil())
        written.writestr("EGG-INFO/PKG-INFO", "Metadata-Version: 2.1\nName: acme-other\nVersion: 9.0\n")
    (site.packages / "easy-install.pth").write_text(f"import sys; sys.path.insert(0, {str(egg)!r})\n")


def a_shadow_of_the_plugins_that_endpick_brings(site: Site) -> None:
    site.write(site.shadow / "endpick_builtin" / "__init__.py")


def an_optional_module_that_is_not_there(site: Site) -> None:
    site.write(site.packages / "parts" / "speedups.py")


PLANT = """
import sys, types
def plant(name, spec=None):
    module = types.ModuleType(name)
    module.__spec__ = spec
    module.__path__ = []
    def use(attribute):
        if attribute.startswith('__') or attribute == 'acts':
            raise AttributeError(attribute)
        exec(EVIL, module.__dict__)
        return module.__dict__[attribute]
    module.__getattr__ = use
    sys.modules[name] = module
"""
"""A module in memory whose code runs when an attribute of it is asked for."""


def a_module_in_memory(site: Site) -> None:
    site.first(f"{PLANT}plant('parts')")


def a_submodule_in_memory(site: Site) -> None:
    site.first(f"{PLANT}plant('parts.scorer')")


def a_module_in_memory_with_the_right_spec(site: Site) -> None:
    site.first(
        f"{PLANT}import importlib.util\n"
        f"plant('parts', importlib.util.spec_from_file_location('parts', {str(site.packages / 'parts' / '__init__.py')!r}))"
    )


def a_module_in_memory_with_a_spec_of_python(site: Site) -> None:
    site.first(f"{PLANT}import json\nplant('parts', json.__spec__)")


def a_submodule_that_a_finder_makes_up_when_it_is_asked_for_the_package(site: Site) -> None:
    site.first(f"{PLANT}{FINDER}find(lambda name: plant('parts.scorer') if name == 'parts' else None)")


def a_module_that_a_finder_makes_up_when_it_is_asked_for_another(site: Site) -> None:
    site.first(f"{PLANT}{FINDER}find(lambda name: plant('parts') if name == 'orjson' or name.startswith('endpick_builtin.') else None)")


def a_module_that_a_finder_makes_up_when_it_is_asked_for_it(site: Site) -> None:
    site.first(f"{PLANT}{FINDER}find(lambda name: plant(name) if name == 'parts' else None)")


FINDER = """
import sys, importlib.util, importlib.machinery, os
class Evil:
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(EVIL, module.__dict__)
class Finder:
    def __init__(self, answer):
        self.find_spec = lambda name, path=None, target=None: answer(name)
def find(answer):
    sys.meta_path.insert(0, Finder(answer))
def spec(name, file=None, **more):
    if file:
        return importlib.util.spec_from_file_location(name, file, loader=Evil(), **more)
    return importlib.machinery.ModuleSpec(name, Evil(), **more)
"""
"""Finders with answers of their own."""


def file_of(site: Site, name: str = "__init__") -> str:
    return repr(str(site.packages / "parts" / f"{name}.py"))


def a_finder_with_the_locked_file_and_a_loader_of_its_own(site: Site) -> None:
    site.first(f"{FINDER}find(lambda name: spec(name, {file_of(site)}) if name == 'parts' else None)")


def a_finder_with_a_text_that_says_it_is_the_locked_file(site: Site) -> None:
    site.write(site.root / "evil.py")
    site.first(
        f"{FINDER}\nclass Name(str):\n    def rpartition(self, by):\n        return {file_of(site)}.rpartition(by)\n"
        f"def answer(name):\n    if name != 'parts':\n        return None\n    found = spec(name, {str(site.root / 'evil.py')!r})\n"
        f"    found.origin = Name(found.origin)\n    return found\nfind(answer)"
    )


def a_finder_without_a_place(site: Site) -> None:
    site.first(f"{FINDER}find(lambda name: spec(name, origin={file_of(site)}) if name == 'parts' else None)")


def a_finder_whose_spec_says_each_time_something_else(site: Site) -> None:
    site.first(
        f"{FINDER}\nclass Spec(importlib.machinery.ModuleSpec):\n    asked = 0\n    @property\n    def has_location(self):\n"
        "        self.asked += 1\n        return self.asked % 2 == 1\n"
        f"find(lambda name: Spec(name, Evil(), origin={file_of(site)}) if name == 'parts' else None)"
    )


def a_finder_that_answers_the_second_time(site: Site) -> None:
    """For a module that is optional, and not there."""
    site.first(
        f"{FINDER}asked = []\n"
        "find(lambda name: (asked.append(1), spec(name) if len(asked) > 1 else None)[1] if name == 'parts.speedups' else None)"
    )


def a_finder_that_looks_who_asks(site: Site) -> None:
    site.first(
        f"{FINDER}\ndef guarded():\n    frame = sys._getframe()\n    while frame:\n"
        "        if frame.f_code.co_filename.endswith('guard.py'):\n"
        "            return True\n        frame = frame.f_back\n    return False\n"
        "find(lambda name: spec(name) if name == 'parts.speedups' and not guarded() else None)"
    )


def a_finder_that_imports_an_absent_module_within_itself(site: Site) -> None:
    site.first(
        f"{FINDER}depth = []\ndef answer(name):\n    if name != 'parts.speedups':\n        return None\n"
        "    if depth:\n        return spec(name)\n"
        "    depth.append(1)\n    importlib.import_module(name)\n    return None\nfind(answer)"
    )


def a_namespace_that_leads_elsewhere(site: Site) -> None:
    site.write(site.root / "else" / "scorer.py")
    places = repr([str(site.root / "else")])
    site.first(
        f"{FINDER}\ndef answer(name):\n    if name != 'parts':\n        return None\n"
        f"    found = importlib.util.spec_from_file_location(name, {file_of(site)},"
        f" submodule_search_locations={places})\n    return found\nfind(answer)"
    )


def a_path_that_changes_while_it_is_walked(site: Site) -> None:
    site.write(site.root / "else" / "scorer.py")
    site.first(
        f"{FINDER}\nclass Places(list):\n    def __iter__(self):\n        return iter([{str(site.root / 'else')!r}])\n"
        f"find(lambda name: importlib.util.spec_from_file_location(name, {file_of(site)},"
        f" submodule_search_locations=Places([{str(site.packages / 'parts')!r}]))"
        " if name == 'parts' else None)"
    )


def a_path_hook_for_the_packages(site: Site) -> None:
    site.first(
        f"{FINDER}\ndef hook(place):\n    if place != {str(site.packages)!r}:\n        raise ImportError\n"
        f"    return Finder(lambda name: spec(name, {file_of(site)}, submodule_search_locations=[]) if name == 'parts' else None)\n"
        "sys.path_hooks.insert(0, hook)\nsys.path_importer_cache.clear()"
    )


def a_remembered_finder_of_the_packages(site: Site) -> None:
    site.first(
        f"{FINDER}class Kept(Finder):\n    def invalidate_caches(self):\n        pass\n"
        f"sys.path_importer_cache[{str(site.packages / 'parts')!r}] = Kept("
        f"lambda name: spec(name, {file_of(site, 'scorer')}) if name.endswith('scorer') else None)"
    )


def byte_code(source: str, file: str, *, unchecked: bool = True, stamp: os.stat_result | None = None) -> bytes:
    """A forged `.pyc`: one that is never compared with its source, or one of the same age and length."""
    code = marshal.dumps(compile(source, file, "exec"))
    if stamp is None:
        return importlib.util.MAGIC_NUMBER + (1 if unchecked else 3).to_bytes(4, "little") + bytes(8) + code
    return b"".join(
        (importlib.util.MAGIC_NUMBER, bytes(4), int(stamp.st_mtime).to_bytes(4, "little"), stamp.st_size.to_bytes(4, "little"), code)
    )


def _cached(site: Site, level: str = "", prefix: Path | None = None) -> Path:
    source = site.packages / "parts" / "scorer.py"
    name = f"scorer.{sys.implementation.cache_tag}{level}.pyc"
    return source.parent / "__pycache__" / name if prefix is None else prefix / source.parent.relative_to("/") / name


def byte_code_that_is_never_compared(site: Site) -> None:
    site.write(_cached(site), byte_code(site.evil(), "scorer.py"))


def byte_code_of_the_same_age_and_length(site: Site) -> None:
    source = site.packages / "parts" / "scorer.py"
    site.write(_cached(site), byte_code(site.evil(), str(source), stamp=source.stat()))


def byte_code_of_an_optimised_level(site: Site) -> None:
    for level in ("1", "2"):
        site.write(_cached(site, f".opt-{level}"), byte_code(site.evil(), "scorer.py"))
    site.environment["PYTHONOPTIMIZE"] = "2"


def byte_code_under_a_prefix(site: Site) -> None:
    site.write(_cached(site, prefix=site.root / "prefix"), byte_code(site.evil(), "scorer.py"))
    site.environment["PYTHONPYCACHEPREFIX"] = str(site.root / "prefix")


def byte_code_in_a_linked_folder(site: Site) -> None:
    site.write(site.root / "elsewhere" / _cached(site).name, byte_code(site.evil(), "scorer.py"))
    _cached(site).parent.symlink_to(site.root / "elsewhere")


def byte_code_in_the_place_of_the_source(site: Site) -> None:
    source = site.packages / "parts" / "scorer.py"
    site.write(source.with_suffix(".pyc"), byte_code(site.evil(), "scorer.py"))
    source.unlink()


def byte_code_on_pythonpath(site: Site) -> None:
    site.write(site.shadow / "parts.pyc", byte_code(site.evil(), "parts.py"))


def byte_code_of_a_package_beside_the_module(site: Site) -> None:
    site.write(site.packages / "parts" / "scorer" / "__init__.pyc", byte_code(site.evil(), "scorer.py"))


SHADOWS: tuple[Way, ...] = (
    a_package_on_pythonpath,
    a_module_on_a_relative_pythonpath,
    a_module_in_the_working_directory_that_pythonpath_means,
    a_package_behind_a_link_on_pythonpath,
    a_shadow_of_the_plugins_that_endpick_brings,
    an_optional_module_that_is_not_there,
)
OTHER_PATHS: tuple[Way, ...] = (a_zip_with_byte_code_alone, an_egg_that_a_path_file_puts_first)
MEMORY: tuple[Way, ...] = (
    a_module_in_memory,
    a_submodule_in_memory,
    a_module_in_memory_with_the_right_spec,
    a_module_in_memory_with_a_spec_of_python,
)
LATER_MEMORY: tuple[Way, ...] = (
    a_submodule_that_a_finder_makes_up_when_it_is_asked_for_the_package,
    a_module_that_a_finder_makes_up_when_it_is_asked_for_another,
    a_module_that_a_finder_makes_up_when_it_is_asked_for_it,
)
FINDERS: tuple[Way, ...] = (
    a_finder_with_the_locked_file_and_a_loader_of_its_own,
    a_finder_with_a_text_that_says_it_is_the_locked_file,
    a_finder_without_a_place,
    a_finder_whose_spec_says_each_time_something_else,
)
ABSENT: tuple[Way, ...] = (
    a_finder_that_answers_the_second_time,
    a_finder_that_looks_who_asks,
    a_finder_that_imports_an_absent_module_within_itself,
)
PLACES: tuple[Way, ...] = (
    a_namespace_that_leads_elsewhere,
    a_path_that_changes_while_it_is_walked,
    a_path_hook_for_the_packages,
    a_remembered_finder_of_the_packages,
)
BYTE_CODE: tuple[Way, ...] = (
    byte_code_that_is_never_compared,
    byte_code_of_the_same_age_and_length,
    byte_code_of_an_optimised_level,
    byte_code_under_a_prefix,
    byte_code_in_a_linked_folder,
)
LONE_BYTE_CODE: tuple[Way, ...] = (byte_code_in_the_place_of_the_source, byte_code_on_pythonpath, byte_code_of_a_package_beside_the_module)


async def modules_found_first(target: Target) -> list[str]:
    """Packages and modules of locked names on PYTHONPATH, relative, empty, behind a link, in endpick's place, and unlisted."""
    return await tried(target, SHADOWS)


async def archives_found_first(target: Target) -> list[str]:
    """Zip archives and eggs before the locked package, with source and with byte code alone."""
    return await tried(target, OTHER_PATHS)


async def modules_made_up_before_the_start(target: Target) -> list[str]:
    """Modules in memory in the place of a locked one or of its submodule, without a spec, with the right one, with one of Python."""
    return await tried(target, MEMORY)


async def modules_made_up_during_the_start(target: Target) -> list[str]:
    """Finders that put modules in the place of locked ones while they are asked for those, for their package, or for something else."""
    return await tried(target, LATER_MEMORY)


async def finders_that_lie(target: Target) -> list[str]:
    """Finders whose specs name the locked file, and bring a loader, a text or an answer of their own."""
    return await tried(target, FINDERS)


async def finders_of_what_is_absent(target: Target) -> list[str]:
    """Finders of a module that is optional and absent: the second time, for Python but not for the guard, within an import of their own."""
    return await tried(target, ABSENT)


async def places_that_lie(target: Target) -> list[str]:
    """Package paths, path hooks and remembered finders that lead to other files than the locked ones."""
    return await tried(target, PLACES)


async def forged_byte_code(target: Target) -> list[str]:
    """Byte code beside the source: never compared, of the same age and length, of each level, under a prefix, in a linked folder."""
    return await tried(target, BYTE_CODE)


async def byte_code_without_source(target: Target) -> list[str]:
    """Byte code in the place of the source, before it on the path, and as a package beside a module."""
    return await tried(target, LONE_BYTE_CODE)


async def commands_that_import_nothing(target: Target) -> list[str]:
    """`list`, `doctor`, `explain`, `lock --check` and `--help` in an environment where every module of a plugin is replaced."""
    found = []
    for way in (a_package_on_pythonpath, byte_code_that_is_never_compared, a_module_on_a_relative_pythonpath):
        site = site_of(target)
        way(site)
        for arguments in (("list",), ("doctor",), ("explain", "E0308"), ("lock", "--check"), ("--help",)):
            process = await asyncio.create_subprocess_exec(
                *site.endpick(*arguments), cwd=site.folder, env=site.surroundings(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            output, _ = await process.communicate()
            if site.mark.exists():
                found.append(f"endpick {arguments[0]} ran foreign code")
                site.mark.unlink()
            if b"Traceback" in output:
                found.append(f"endpick {arguments[0]} ended in a traceback")
        shutil.rmtree(site.root, ignore_errors=True)
    return found


ATTEMPTS = tuple(
    Attempt(run)
    for run in (
        modules_found_first,
        archives_found_first,
        modules_made_up_before_the_start,
        modules_made_up_during_the_start,
        finders_that_lie,
        finders_of_what_is_absent,
        places_that_lie,
        forged_byte_code,
        byte_code_without_source,
        commands_that_import_nothing,
    )
)
