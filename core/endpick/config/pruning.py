"""The part of a document that is left when the faulty parts are taken out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from endpick.config.part import Part
from endpick.config.tree import Json
from endpick.diagnostics import DocumentPath


def prune(data: Json, faulty: Collection[DocumentPath], path: DocumentPath = ()) -> Json:
    """A copy of `data`, which stands at `path`, without what stands at the faulty paths."""
    match data:
        case Mapping():
            return {key: prune(value, faulty, (*path, key)) for key, value in data.items() if (*path, key) not in faulty}
        case str():
            return data
        case Sequence():
            return [prune(data[index], faulty, (*path, index)) for index in survivors(len(data), faulty, path)]
        case _:
            return data


def survivors(length: int, faulty: Collection[DocumentPath], path: DocumentPath) -> list[int]:
    """The indices that the remaining items of a list at `path` had in the document."""
    return [index for index in range(length) if (*path, index) not in faulty]


def original_path(path: DocumentPath, data: Json, faulty: Collection[DocumentPath]) -> DocumentPath:
    """A path into the pruned document as a path into `data`; it ends where `data` has nothing more."""
    original: DocumentPath = ()
    for segment in path:
        if isinstance(data, Mapping) and isinstance(segment, str):
            original = (*original, segment)
            data = data.get(segment)
        elif isinstance(data, Sequence) and not isinstance(data, str) and isinstance(segment, int):
            index = survivors(len(data), faulty, original)[segment]
            original = (*original, index)
            data = data[index]
        else:
            break
    return original


def place_parts(part: Part, data: Json, faulty: Collection[DocumentPath], path: DocumentPath = ()) -> None:
    """Tell every part of a document model where in `data` it stands."""
    part._path = path
    if not isinstance(data, Mapping):
        return
    for name, field in type(part).model_fields.items():
        key = field.alias or name
        for child, value, where in _children(getattr(part, name), data.get(key), faulty, (*path, key)):
            place_parts(child, value, faulty, where)


def _children(value: object, data: Json, faulty: Collection[DocumentPath], path: DocumentPath) -> Iterator[tuple[Part, Json, DocumentPath]]:
    if isinstance(value, Part):
        yield value, data, path
    elif isinstance(value, tuple) and isinstance(data, Sequence) and not isinstance(data, str):
        for item, index in zip(value, survivors(len(data), faulty, path), strict=True):
            if isinstance(item, Part):
                yield item, data[index], (*path, index)
