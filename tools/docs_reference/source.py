"""Reads modules as their authors wrote them: signatures and the strings behind fields, which are gone at run time."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from types import ModuleType

from docs_reference.markdown import code, docstring

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Assign | ast.AnnAssign
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def definitions(module: ModuleType) -> dict[str, tuple[Definition, str]]:
    """What a module defines at its top level, in order: name to (syntax tree, documentation)."""
    return dict(_documented(ast.parse(inspect.getsource(module)).body))


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, tuple[Definition, str]]]:
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node, ast.get_docstring(node) or "")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                yield target.id, (node, _string(after))


def _string(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return inspect.cleandoc(node.value.value)
    return ""


def render(name: str, node: Definition, doc: str, level: int) -> str:
    """One definition with everything public in it."""
    heading = "#" * level
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        title = f"{heading} `{name}`"
        declared = f"```python\nclass {name}{f'({bases})' if bases else ''}\n```"
        return "\n\n".join(filter(None, (title, declared, docstring(doc), *_members(node, level + 1))))
    if isinstance(node, _FUNCTIONS):
        return "\n\n".join(filter(None, (f"{heading} `{name}`", f"```python\n{_signature(node)}\n```", docstring(doc))))
    return "\n\n".join(filter(None, (f"{heading} `{name}`", f"```python\n{ast.unparse(node)}\n```", docstring(doc))))


def _members(node: ast.ClassDef, level: int) -> Iterator[str]:
    fields, methods = [], []
    for name, (member, doc) in _documented(node.body):
        if isinstance(member, _FUNCTIONS):
            if (not name.startswith("_") or name == "__init__" or name == "__getitem__") and doc:
                methods.append(render(name, member, doc, level))
        elif not name.startswith("_") and isinstance(member, ast.Assign | ast.AnnAssign):
            fields.append(_field(member, doc))
    if fields:
        yield "\n".join(fields)
    yield from methods


def _field(node: ast.Assign | ast.AnnAssign, doc: str) -> str:
    text = ast.unparse(node)
    return f"- {code(text)}" + (f": {' '.join(doc.split())}" if doc else "")


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    decorators = [ast.unparse(one) for one in node.decorator_list]
    shown = [f"@{one}" for one in decorators if one in ("abstractmethod", "property", "classmethod")]
    keyword = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    text = f"{keyword} {node.name}({ast.unparse(node.args)})" + (f" -> {ast.unparse(node.returns)}" if node.returns else "")
    return "\n".join((*shown, _wrapped(text, node)))


def _wrapped(text: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """A signature that is long gets a line for each argument."""
    if len(text) <= 100:
        return text
    head, _, rest = text.partition("(")
    body, _, tail = rest.rpartition(")")
    if node.returns is not None:
        body, _, tail = rest.rpartition(") -> ")
        tail = f" -> {tail}"
    return f"{head}(\n" + "".join(f"    {part},\n" for part in _split(body)) + f"){tail}"


def _split(arguments: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(arguments):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            parts.append(arguments[start:at].strip())
            start = at + 1
    return [*parts, arguments[start:].strip()]
