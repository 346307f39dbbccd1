"""The base of the models that verbs print as JSON.

The module of a verb names its model in `OUTPUTS = {"verb": Model}`, and `endpick schema verb` prints the schema.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Output(BaseModel):
    """A part of a document; names are in camelCase."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)
