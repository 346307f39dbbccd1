"""What `{{ cookiecutter.plugin_type }}` keeps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from endpick.api import WAITING_QUEUE_SIZE, Endpoints, InferenceRequest, PluginContext, ScoringState
from hypothesis import given
from hypothesis import strategies as st

from {{ cookiecutter.__package }}.filter import {{ cookiecutter.__class }}, {{ cookiecutter.__parameters }}
