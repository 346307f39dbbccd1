"""A picture of the data flow as text that other programs draw: Mermaid for Markdown, DOT for Graphviz."""

from __future__ import annotations

from endpick.planning.picture import Picture


def mermaid(picture: Picture) -> str:
    """A Mermaid flowchart; GitHub and GitLab draw it inside Markdown."""
    number = {node.name: f"n{index}" for index, node in enumerate(picture.nodes)}
    lines = ["flowchart LR", *(f'  {number[node.name]}["{_mermaid(node.name)}"]' for node in picture.nodes)]
    for arrow in picture.arrows:
        line = "-->" if arrow.needed else "-.->"
        lines.append(f'  {number[arrow.giver]} {line}|"{"<br/>".join(map(_mermaid, arrow.what))}"| {number[arrow.taker]}')
    added = [number[node.name] for node in picture.nodes if node.added]
    if added:
        lines += ["  classDef added stroke-dasharray: 4 3", f"  class {','.join(added)} added"]
    return "\n".join(lines) + "\n"


def dot(picture: Picture) -> str:
    """A Graphviz digraph."""
    lines = ["digraph endpick {", "  rankdir=LR", '  node [shape=box, style=rounded, fontname="sans-serif"]']
    for node in picture.nodes:
        style = ', style="rounded,dashed"' if node.added else ""
        lines.append(f"  {_dot(node.name)} [label={_dot(node.name)}{style}]")
    for arrow in picture.arrows:
        style = "" if arrow.needed else ", style=dashed"
        lines.append(f"  {_dot(arrow.giver)} -> {_dot(arrow.taker)} [label={_dot(*arrow.what)}{style}]")
    return "\n".join([*lines, "}"]) + "\n"


def _mermaid(text: str) -> str:
    """Text inside quotes: Mermaid reads entities there, and Markdown nothing else."""
    return "".join(character if character.isalnum() or character in " -_./@" else f"#{ord(character)};" for character in text)


def _dot(*lines: str) -> str:
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(escaped) + '"'
