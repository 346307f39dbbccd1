"""The docstring of each package is a map of it: one line per module, and none for a module that is gone."""

from __future__ import annotations

import ast
import pkgutil
import re
from pathlib import Path

import pytest

import endpick
import endpick_builtin

IMPORT = re.compile(r"^from endpick\.transport\.h2(?:\.(\w+) import| import (\w+))", re.MULTILINE)
LINE = re.compile(r"^- (`[^`]+`(?:, `[^`]+`)*):", re.MULTILINE)
NAME = re.compile(r"`([^`]+?)/?`")

[CORE] = map(Path, endpick.__path__)
[BUILTIN] = map(Path, endpick_builtin.__path__)
WITHOUT_MAP = {"_proto", "_data"}  # generated code, and the template of a plugin, which an installed endpick carries
PACKAGES = {
    str(init.parent.relative_to(root.parent)): init.parent
    for root in (CORE, BUILTIN)
    for init in sorted(root.rglob("__init__.py"))
    if init.parent != CORE and WITHOUT_MAP.isdisjoint(init.parts)  # the top has the layers for a map
}


def names_on_the_map(package: Path) -> list[str]:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))
    return [name for line in LINE.findall(docstring or "") for name in NAME.findall(line)]


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
def test_the_map_of_a_package_names_every_module_once_and_nothing_that_is_gone(package):
    names = names_on_the_map(package)
    modules = {path.stem for path in package.glob("*.py")} | {path.parent.name for path in package.glob("*/__init__.py")}
    assert len(names) == len(set(names))
    assert modules - set(names) == {"__init__"}
    assert [name for name in names if name not in modules and not (package / name).exists()] == []


def test_the_modules_of_h2_import_only_what_stands_below_them_on_the_map():
    package = PACKAGES["endpick/transport/h2"]
    order = names_on_the_map(package)
    for position, module in enumerate(order):
        imported = {first or second for first, second in IMPORT.findall((package / f"{module}.py").read_text())}
        assert imported <= set(order[position + 1 :]), module


REFERENCE = re.compile(r"`((?:endpick\.)?([a-z_0-9]+)\.[A-Za-z_0-9.]+)`")
SUBPACKAGES = {name.removeprefix("endpick/").split("/")[0] for name in PACKAGES if name.startswith("endpick/")}
ENTRY_POINTS = {"endpick.plugins.v1", "endpick.hooks.v1"}


@pytest.mark.parametrize("module", sorted(CORE.rglob("*.py")), ids=lambda path: str(path.relative_to(CORE)))
def test_what_a_module_refers_to_by_name_exists(module):
    if not WITHOUT_MAP.isdisjoint(module.parts):
        return
    named = {full for full, package in REFERENCE.findall(module.read_text(encoding="utf-8")) if package in SUBPACKAGES} - ENTRY_POINTS
    assert [name for name in sorted(named) if not exists("endpick." + name.removeprefix("endpick."))] == []


def exists(name: str) -> bool:
    """Whether a module, or what stands in one, has this dotted name."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True
