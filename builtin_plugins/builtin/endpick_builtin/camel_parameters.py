"""The base class of built-in parameters."""

from __future__ import annotations

from pydantic import ConfigDict
from pydantic.alias_generators import to_camel

from endpick.api import Parameters


class CamelParameters(Parameters):
    """Parameters that configurations write in camelCase: `max_sessions` is `maxSessions`, unless its field has an alias."""

    model_config = ConfigDict(alias_generator=to_camel)
