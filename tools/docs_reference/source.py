"""Reads definitions from source: signatures, and the strings behind fields, which do not exist at run time."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from types import ModuleType

from docs_reference.markdown import code, docstring

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_FIELDS = (ast.Assign, ast.AnnAssign)
_SHOWN_DECORATORS = ("abstractmethod", "property", "classmethod")
_LONGEST = 100


def definitions(module: ModuleType) -> dict[str, tuple[Definition, str]]:
    """Top-level definitions of a module, in order: name to (syntax tree, documentation). Members of private bases belong to the class."""
    found = dict(_documented(ast.parse(inspect.getsource(module)).body))
    for node in (node for node, _ in found.values() if isinstance(node, ast.ClassDef)):
        bases = (found.get(ast.unparse(base).partition("[")[0]) for base in node.bases)
        node.body[:0] = [each for base in bases if base and base[0].name.startswith("_") for each in base[0].body]  # type: ignore[union-attr]
    return found


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, tuple[Definition, str]]]:
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node, ast.get_docstring(node) or "")
        elif isinstance(node, _FIELDS):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                yield target.id, (node, _string(after))


def _string(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return inspect.cleandoc(node.value.value)
    return ""


def render(name: str, node: Definition, doc: str, level: int = 3) -> str:
    """One definition with its signature, documentation and public members."""
    if not isinstance(node, ast.ClassDef):
        return _joined(_heading(name, level), _block(_declared(node)), docstring(doc))
    public = {member: each for member, each in _documented(node.body) if _is_public(member, each)}
    fields = [each for each in public.values() if isinstance(each[0], _FIELDS)]
    plain = [textwrap.indent(_declared(field), "    ") for field, text in fields if not text]
    explained = "\n".join(f"- {code(_declared(field))}: {' '.join(text.split())}" for field, text in fields if text)
    methods = (render(member, *each, level + 1) for member, each in public.items() if isinstance(each[0], _FUNCTIONS))
    return _joined(_heading(name, level), _block("\n".join((_declared(node), *plain))), docstring(doc), explained, *methods)


def _joined(*parts: str) -> str:
    return "\n\n".join(filter(None, parts))


def _heading(name: str, level: int) -> str:
    return f"{'#' * level} `{name}`"


def _block(text: str) -> str:
    return f"```python\n{text}\n```"


def _is_public(name: str, member: tuple[Definition, str]) -> bool:
    node, doc = member
    if isinstance(node, _FUNCTIONS):
        return not name.startswith("_") or (name.startswith("__") and bool(doc))
    is_kind = name == "kind" and isinstance(node, ast.AnnAssign) and node.value is not None  # only `endpick.api` sets it
    return not name.startswith("_") and isinstance(node, _FIELDS) and not is_kind


def _declared(node: Definition) -> str:
    """A definition without its body."""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(map(ast.unparse, node.bases))
        return f"class {node.name}{f'({bases})' if bases else ''}"
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return ast.unparse(node)
    decorators = [f"@{text}" for text in map(ast.unparse, node.decorator_list) if text in _SHOWN_DECORATORS]
    keyword = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    text = f"{keyword} {node.name}({ast.unparse(node.args)}){returns}"
    if len(text) > _LONGEST:
        listed = "".join(f"    {one},\n" for one in _arguments(node.args))
        text = f"{keyword} {node.name}(\n{listed}){returns}"
    return "\n".join((*decorators, text))


def _arguments(arguments: ast.arguments) -> Iterator[str]:
    """Each argument on its own, split at the commas outside brackets."""
    depth, start, text = 0, 0, ast.unparse(arguments)
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            yield text[start:at].strip()
            start = at + 1
    yield text[start:].strip()
