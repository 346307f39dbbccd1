"""When in the life of a request each kind of plugin runs: data flows from earlier layers to later ones, never back."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

from endpick.api.plugin import Kind


class Layer(enum.IntEnum):
    """The layers in the order in which they run."""

    COLLECTION = 0
    PARSING = 1
    SCREENING = 2
    PRODUCTION = 3
    ADMISSION = 4
    SCHEDULING = 5
    PRE_REQUEST = 6
    RESPONSE = 7

    @property
    def title(self) -> str:
        """How messages name it."""
        return self.name.lower().replace("_", "-")


LAYER_OF: Mapping[Kind, Layer] = {
    Kind.DATA_SOURCE: Layer.COLLECTION,
    Kind.DATA_COLLECTOR: Layer.COLLECTION,
    Kind.ENDPOINT_DISCOVERY: Layer.COLLECTION,
    Kind.PARSER: Layer.PARSING,
    Kind.SCREENER: Layer.SCREENING,
    Kind.DATA_PRODUCER: Layer.PRODUCTION,
    Kind.ADMITTER: Layer.ADMISSION,
    Kind.SATURATION_DETECTOR: Layer.ADMISSION,
    Kind.PROFILE_HANDLER: Layer.SCHEDULING,
    Kind.FILTER: Layer.SCHEDULING,
    Kind.SCORER: Layer.SCHEDULING,
    Kind.PICKER: Layer.SCHEDULING,
    Kind.PRE_REQUEST: Layer.PRE_REQUEST,
    Kind.RESPONSE_OBSERVER: Layer.RESPONSE,
}

_WRITING_KINDS = frozenset({Kind.DATA_COLLECTOR, Kind.DATA_PRODUCER, Kind.PRE_REQUEST, Kind.RESPONSE_OBSERVER})


def first_write(kinds: Iterable[Kind]) -> Layer:
    """The earliest layer in which an instance of these kinds can write."""
    own = frozenset(kinds)
    return min(LAYER_OF[kind] for kind in own & _WRITING_KINDS or own)


def last_read(kinds: Iterable[Kind]) -> Layer:
    """The latest layer in which an instance of these kinds can read."""
    return max(LAYER_OF[kind] for kind in kinds)
