"""`header-profile-handler`: a header of the request names the profile to run.

A module of its own because a coordinator, and no endpoint picker, decides about stages then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from endpick.api import (
    CycleState,
    InferenceRequest,
    Parameters,
    PluginContext,
    ProfileRunResult,
    Stability,
)
from endpick_builtin.handlers.single_profile import OneRunHandler


class HeaderProfileParameters(Parameters):
    """Which header, and what to do without it."""

    header_name: Annotated[
        str,
        Field(
            alias="headerName",
            min_length=1,
            description="Header whose value names the scheduling profile; upper and lower case make no difference in the header's name.",
        ),
    ] = "EPP-Profile"
    default_profile: Annotated[
        str,
        Field(alias="defaultProfile", min_length=1, description="Profile of a request without the header, or with an empty one."),
    ] = "decode"


class HeaderProfileHandler(OneRunHandler[HeaderProfileParameters]):
    """Run the profile that a header names, or `defaultProfile` without the header.

    A configuration with one profile always runs that. A name that no profile has runs none: the request is refused with 429, as in llm-d.
    """

    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: HeaderProfileParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._header = parameters.header_name.lower()

    def pick_profiles(
        self, request: InferenceRequest, profiles: Sequence[str], results: Mapping[str, ProfileRunResult], state: CycleState
    ) -> Sequence[str]:
        """The profile that is asked for, once."""
        if results:
            return ()
        if len(profiles) == 1:
            return profiles
        named = request.headers.get(self._header) or self.parameters.default_profile
        return (named,) if named in profiles else ()
