"""`models-data-extractor`: the models each endpoint serves, as a column."""

from __future__ import annotations

from endpick.api import SERVED_MODELS, ColumnWriter, DataCollector, Parameters, PluginMeta
from endpick_builtin.sources.models import ModelList


class ModelsDataExtractor(DataCollector[Parameters, ModelList]):
    """Keeps each endpoint's list of models under `served-models`."""

    meta = PluginMeta(
        type="models-data-extractor",
        api=">=1.0,<2",
        produces=(SERVED_MODELS,),
        payload=ModelList,
        default_source="models-data-source",
    )

    def collect(self, payload: ModelList, writer: ColumnWriter) -> None:
        """Keep the list as it is."""
        writer.set(SERVED_MODELS, tuple(payload))
