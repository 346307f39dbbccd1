"""Plugins whose class, entry point or parameters break a rule of the kit."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field

from conformance.broken.register import NAMELESS, UNDEMANDING, Fair, breaks
from endpick.api import (
    Parameters,
    Scorer,
)


@breaks("loads", "does not implement `score`")
class Unfinished(Scorer):
    """Forgot `score`."""


@breaks("loads", "is called with (request, endpoints, state), but")
class OldSignature(Scorer):
    """Takes one argument too few."""

    def score(self, request, endpoints):
        return np.ones(len(endpoints))


@breaks("has_a_docstring", "the class has no docstring")
class Undocumented(Fair):
    pass


@breaks("requires_endpick", "undemanding-plugins does not say which endpick it needs", distribution=UNDEMANDING)
class Undemanding(Fair):
    """Comes from a distribution without requirements."""


@breaks("has_a_vendor_prefix", "the type has no prefix", plugin_type="prefixless")
class Prefixless(Fair):
    """Its type looks like one of endpick's own."""


@breaks("documents_its_data_keys", "the data key 'acme.example/nameless' has no `doc`")
class Secretive(Scorer):
    """Reads a key of which the kit does not know what it holds."""

    consumes = (NAMELESS,)

    def score(self, request, endpoints, state):
        return np.nan_to_num(endpoints[NAMELESS])


@breaks("works_under_its_aliases", "the alias 'broken.formerly' has no entry point")
class Renamed(Fair):
    """Has a former name that leads nowhere."""

    aliases = ("broken.formerly",)


class Terse(Parameters):
    """Says nothing about its field."""

    limit: int = 1


@breaks("describes_its_parameters", "the parameter 'limit' has no description")
class TerseScorer(Fair, Scorer[Terse]):
    """Has a parameter without description."""


class Lenient(Parameters):
    """Takes anything."""

    model_config = ConfigDict(extra="allow")


@breaks("refuses_unknown_parameters", "it accepts a parameter that does not exist")
class LenientScorer(Fair, Scorer[Lenient]):
    """Ignores typing mistakes."""


class Contradictory(Parameters):
    """Its default breaks its own rule."""

    limit: Annotated[int, Field(gt=0, description="A count.")] = 0


@breaks("has_valid_defaults", "the default of 'limit', 0, is not valid: Input should be greater than 0")
class ContradictoryScorer(Fair, Scorer[Contradictory]):
    """Has an invalid default."""


class Misleading(Parameters):
    """Its example does not work."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"limit": "many"}]})
    limit: Annotated[int, Field(description="A count.")] = 1


@breaks("has_valid_examples", "the host refuses example 1 of the schema: parameter 'limit'")
class MisleadingScorer(Fair, Scorer[Misleading]):
    """Has an invalid example."""


class Required(Parameters):
    """Cannot be left out."""

    model: Annotated[str, Field(description="A model.")]


@breaks("has_valid_examples", "parameter 'model' of broken.exacting is missing")
class Exacting(Fair, Scorer[Required]):
    """Needs a parameter of which it gives no example."""


class Mutable(Parameters):
    """Can be changed."""

    model_config = ConfigDict(frozen=False)


@breaks("keeps_parameters_immutable", "its parameters can be changed")
class MutableScorer(Fair, Scorer[Mutable]):
    """Has parameters that change under way."""


class Ratio(Parameters):
    """A share."""

    share: Annotated[int, Field(description="A share.")] = 0


@breaks("can_be_built", "ZeroDivisionError: division by zero")
class Unbuildable(Fair, Scorer[Ratio]):
    """Divides by its default."""

    def __init__(self, name, parameters, context):
        super().__init__(name, parameters, context)
        self.inverse = 1 / parameters.share
