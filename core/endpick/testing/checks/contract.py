"""What the host itself refuses: asked first, because nothing else can be judged of a class that the host would not load."""

from __future__ import annotations

from collections.abc import Iterator

from endpick.testing.check import Finding, check
from endpick.testing.subject import Subject


@check()
def loads(subject: Subject) -> Iterator[Finding]:
    """The host loads the class: kind, metadata, methods, signatures and parameter schema are in order."""
    for refusal in subject.refusals:
        notes = "; ".join(refusal.notes)
        yield Finding(f"{refusal.message} [{refusal.code}]", notes or f"`endpick explain {refusal.code}` says more")
