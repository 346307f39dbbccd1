"""`models-data-source`: the models each endpoint says it serves."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from endpick.api import Endpoint, PluginMeta, ServedModel, Unavailable
from endpick_builtin.sources.http import HttpSource, HttpSourceParameters


class ModelsSourceParameters(HttpSourceParameters):
    """Where the list of models is."""

    path: Annotated[str, Field(pattern="^/", description="Path of the list of models, from the root of the server.")] = "/v1/models"


class ModelList(tuple[ServedModel, ...]):
    """The payload: what one endpoint serves, in its own order."""

    __slots__ = ()


class _Entry(BaseModel):
    id: str
    parent: str | None = None


class _Answer(BaseModel):
    data: list[_Entry]


class ModelsDataSource(HttpSource[ModelsSourceParameters, ModelList]):
    """Asks every endpoint for its list of models, in the OpenAI format: `{"data": [{"id": …, "parent": …}]}`."""

    meta = PluginMeta(
        type="models-data-source",
        api=">=1.0,<2",
        parameters=ModelsSourceParameters,
        payload=ModelList,
        default_collectors=("models-data-extractor",),
    )
    accept = "application/json"

    async def poll(self, endpoint: Endpoint) -> ModelList:
        """One look at the list."""
        return model_list_of(await self.fetch(endpoint))


def model_list_of(body: bytes) -> ModelList:
    """Read an answer of `/v1/models`.

    Raises:
        Unavailable: it is no such answer.
    """
    try:
        answer = _Answer.model_validate_json(body)
    except ValidationError as problem:
        first = problem.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the answer"
        raise Unavailable(f"the list of models cannot be read: {where}: {first['msg']}") from problem
    return ModelList(ServedModel(entry.id, entry.parent or "") for entry in answer.data)
