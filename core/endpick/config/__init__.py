"""Configuration: from YAML text to a checked document, with the place of everything in it."""

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
    PluginPolicy,
    PluginRef,
    PluginSpec,
    PriorityBand,
    ProfilePlugin,
    RequestHandler,
    SchedulingProfile,
)
from endpick.config.part import Part
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
