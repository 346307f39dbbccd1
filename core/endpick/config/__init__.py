"""Configuration: turns YAML text into a checked document, with the place in the file of everything in it.

- `load`: what does a configuration file say, and what is wrong with it? Start here: `load_config`.
- `source`: where in the file was each key and value written?
- `yaml_nodes`: is the text one YAML document, and where does each node stand?
- `yaml_values`: which plain data do the nodes stand for, and which values would another YAML reader read differently?
- `model`: which fields does the document have, of which type, with which default?
- `shape`: which fields are unknown, missing or of the wrong type?
- `checks`: what else is wrong that one can tell without knowing any plugin?
- `foreign_yaml`: what does a YAML text say that is no configuration?
- `schema`: which JSON Schema do editors use to complete a configuration?
- `default.yaml`: the configuration of `endpick serve` without a file.

`cli`, `testing`, `planning` and `plugins` call it. It may import `diagnostics` and `api`.
"""

from endpick.config.load import LoadedConfig, load_config, load_config_again
from endpick.config.model import (
    API_VERSIONS,
    ENDPICK,
    KIND,
    LLM_D,
    LLM_D_DEPRECATED,
    DataLayer,
    DataSourceSpec,
    EndpointPickerConfig,
    FlowControl,
    HookSpec,
    OnFault,
    Part,
    PluginPolicy,
    PluginRef,
    PluginSpec,
    PriorityBand,
    ProfilePlugin,
    RequestHandler,
    SchedulingProfile,
)
from endpick.config.source import SourceMap

__all__ = (
    "API_VERSIONS",
    "ENDPICK",
    "KIND",
    "LLM_D",
    "LLM_D_DEPRECATED",
    "DataLayer",
    "DataSourceSpec",
    "EndpointPickerConfig",
    "FlowControl",
    "HookSpec",
    "LoadedConfig",
    "OnFault",
    "Part",
    "PluginPolicy",
    "PluginRef",
    "PluginSpec",
    "PriorityBand",
    "ProfilePlugin",
    "RequestHandler",
    "SchedulingProfile",
    "SourceMap",
    "load_config",
    "load_config_again",
)
