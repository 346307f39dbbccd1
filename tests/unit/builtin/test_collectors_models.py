"""The models data extractor."""

from __future__ import annotations

from endpick.api import Endpoint, Parameters, PluginContext
from endpick.api.access import AccessScope
from endpick.api.keys import SERVED_MODELS, ServedModel
from endpick.data.table import EndpointTable
from endpick_builtin.collection.sources import ModelList, ModelsDataExtractor


def test_the_list_becomes_a_column():
    table = EndpointTable(lambda: 0.0, (SERVED_MODELS,))
    endpoint = Endpoint("default/a", "10.0.0.1", 8000)
    table.upsert(endpoint)
    collector = ModelsDataExtractor("models", Parameters(), PluginContext())
    models = (ServedModel("base"), ServedModel("adapter", "base"))
    collector.collect(ModelList(models), table.writer(AccessScope("models", frozenset(), frozenset({SERVED_MODELS.name})), endpoint))
    assert table.view().objects(SERVED_MODELS) == [models]
