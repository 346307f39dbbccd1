"""When the build hook compiles, and what; that the result works is shown by `make compiled`."""

from __future__ import annotations

import ast
import importlib.util
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from endpick.host.discovery import request_path

ROOT = Path(__file__).parents[3]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]


@pytest.fixture
def hook():
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    metadata = SimpleNamespace(core=SimpleNamespace(dependencies=["orjson>=3.10"]))
    return module.CompiledRequestPath(str(ROOT), CONFIG, None, metadata, "", "wheel")


@pytest.mark.parametrize(("asked", "version"), [("", "standard"), ("0", "standard"), ("1", "editable")])
def test_nothing_is_compiled_unasked_or_for_an_editable_install(hook, monkeypatch, asked, version):
    monkeypatch.setenv("ENDPICK_COMPILE", asked)
    build_data = {"force_include": {}, "pure_python": True}
    hook.initialize(version, build_data)
    hook.finalize(version, build_data, "")
    assert build_data == {"force_include": {}, "pure_python": True}


@pytest.mark.parametrize(("asked", "needed"), [("", []), ("1", [*CONFIG["compiler"], "orjson>=3.10"])])
def test_only_who_compiles_needs_a_compiler(hook, monkeypatch, asked, needed):
    monkeypatch.setenv("ENDPICK_COMPILE", asked)
    assert hook.dependencies() == needed


@pytest.mark.parametrize(("given", "level"), [({}, "3"), ({"ENDPICK_COMPILE_LEVEL": "1"}, "1")])
def test_c_is_optimised_all_the_way_unless_told_otherwise(hook, monkeypatch, tmp_path, given, level):
    asked = []
    monkeypatch.delenv("ENDPICK_COMPILE_LEVEL", raising=False)
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr("mypyc.build.mypycify", lambda _modules, *, opt_level, **_more: asked.append(opt_level) or [])
    assert list(hook.initialize.__globals__["_compiled"]([], tmp_path)) == []
    assert asked == [level]


@pytest.mark.parametrize("pattern", [*CONFIG["modules"], *CONFIG["interpreted"]])
def test_every_pattern_means_something(pattern):
    chosen = {path for each in CONFIG["modules"] for path in ROOT.glob(each)}
    assert chosen & set(ROOT.glob(pattern))


def test_packages_and_what_plugins_inherit_from_stay_python(hook):
    modules = hook.modules()
    assert "core/endpick/extproc/session.py" in modules
    assert not [module for module in modules if module.endswith("__init__.py")]
    bases = {f"core/endpick/api/{name}.py" for name in ("plugin", "scheduling", "request_control", "datalayer", "hooks")}
    assert all((ROOT / base).is_file() for base in bases)
    assert bases.isdisjoint(modules)


def test_models_of_parameters_stay_python(hook):
    classes = [
        node for module in hook.modules() for node in ast.walk(ast.parse((ROOT / module).read_text())) if isinstance(node, ast.ClassDef)
    ]
    assert "MaxScorePicker" in {node.name for node in classes}
    assert [node.name for node in classes if any(ast.unparse(base).endswith("Parameters") for base in node.bases)] == []


def test_no_compiled_slice_calls_anything(hook):
    """mypyc 2.4 evaluates the bounds of a slice twice where it knows no slice of the type, such as one of numpy: a draw would be lost."""
    slices = [node for module in hook.modules() for node in ast.walk(ast.parse((ROOT / module).read_text())) if isinstance(node, ast.Slice)]
    calls = {ast.unparse(call.func) for each in slices for call in ast.walk(each) if isinstance(call, ast.Call)}
    assert calls <= {"len", "min", "max"}


def test_a_function_names_errors_of_different_types_apart(hook):
    """mypyc gives a name one type in a function; catching another type under it raises TypeError."""
    shared = []
    for module in hook.modules():
        for function in ast.walk(ast.parse((ROOT / module).read_text())):
            if isinstance(function, ast.FunctionDef):
                handlers = [node for node in ast.walk(function) if isinstance(node, ast.ExceptHandler) and node.name and node.type]
                types = {(handler.name, ast.unparse(handler.type)) for handler in handlers}
                if len(types) > len({name for name, _ in types}):
                    shared.append(f"{module}: {function.name}")
    assert shared == []


def test_coroutines_stay_python(hook):
    trees = {module: ast.walk(ast.parse((ROOT / module).read_text())) for module in hook.modules()}
    assert [module for module, nodes in trees.items() if any(isinstance(node, ast.AsyncFunctionDef) for node in nodes)] == []


def test_no_compiled_twin_lies_beside_the_sources_and_hides_them():
    assert list((ROOT / "core").rglob("*.so")) == []


def test_what_runs_is_told_by_the_files_beside_it(monkeypatch, tmp_path):
    monkeypatch.setattr("endpick.host.discovery.PACKAGE", tmp_path)
    (tmp_path / "extproc").mkdir()
    assert request_path() == "interpreted"
    (tmp_path / "extproc" / "session.cpython-311-x86_64-linux-gnu.so").touch()
    assert request_path() == "compiled"
