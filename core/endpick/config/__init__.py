"""Reads configuration files: turns YAML into a checked document and keeps the place of every key and value.

Start with `load_config`.
"""

from endpick.config.load import LoadedConfig, load_config
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
)
