"""Reads YAML configuration files, with the place of every key and value. Start with `load_config`."""

from endpick.config.load import LoadedConfig, load_config
from endpick.config.model import (
    API_VERSIONS,
    ENDPICK,
    DataSourceSpec,
    EndpointPickerConfig,
    FlowControl,
    PluginRef,
    PluginSpec,
    PriorityBand,
    ProfilePlugin,
    SchedulingProfile,
)
from endpick.config.source import SourceMap

__all__ = (
    "API_VERSIONS",
    "ENDPICK",
    "DataSourceSpec",
    "EndpointPickerConfig",
    "FlowControl",
    "LoadedConfig",
    "PluginRef",
    "PluginSpec",
    "PriorityBand",
    "ProfilePlugin",
    "SchedulingProfile",
    "SourceMap",
    "load_config",
)
