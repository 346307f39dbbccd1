"""The plugin under test: its class, what the host says of it, and the parameter blocks to try it with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from endpick.api.data import AnyKey
from endpick.api.plugin import Kind, Parameters, Plugin, PluginMeta, kinds_of
from endpick.diagnostics import Diagnostic
from endpick.plugins.contract import check_contract
from endpick.plugins.discovery import Candidate, find
from endpick.plugins.loader import LoadedPlugin
from endpick.plugins.parameters import check_parameters, parameters_schema
from endpick.plugins.reference import Reference
from endpick.plugins.schema import schemas_of
from endpick.versions import API_MAJOR

NOT_INSTALLED = "(not installed)"


@dataclass(frozen=True, slots=True)
class Block:
    """A `parameters:` block to try, as an operator would write it, and where the kit has it from."""

    origin: str
    raw: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Material:
    """What an author gives the kit beside the class.

    Attributes:
        parameters: The block to begin with, for plugins whose parameters have no defaults.
        examples: Further blocks that must work.
        payloads: What the plugin's source might deliver, for data collectors of payload types the kit does not know.
        samples: Values of data keys, for keys whose values the kit cannot make up.
    """

    parameters: Mapping[str, object] | None = None
    examples: Sequence[Mapping[str, object]] = ()
    payloads: Sequence[object] = ()
    samples: Mapping[AnyKey, Sequence[object]] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """One plugin class under test.

    Attributes:
        plugin: The class; perhaps none at all, see `refusals`.
        offers: Installed entry points that lead to the class or bear its type.
        material: What its author gave.
    """

    plugin: type[Plugin[Parameters]]
    offers: tuple[Candidate, ...]
    material: Material = field(default_factory=Material)

    @property
    def name(self) -> str:
        """The plugin type, or the class where there is none."""
        meta = getattr(self.plugin, "meta", None)
        return meta.type if isinstance(meta, PluginMeta) else self.plugin.__qualname__

    @property
    def target(self) -> str:
        """Where the class is, as an entry point writes it: `module:Class`."""
        return f"{self.plugin.__module__}:{self.plugin.__qualname__}"

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What it can do."""
        return kinds_of(self.plugin)

    @property
    def candidate(self) -> Candidate:
        """The entry point through which the host would find it; an invented one when there is none."""
        usable = [offer for offer in find(self.offers, self.name) if offer.target == self.target]
        return usable[0] if usable else Candidate(self.name, API_MAJOR, NOT_INSTALLED, "", self.target, "")

    @cached_property
    def refusals(self) -> tuple[Diagnostic, ...]:
        """Why the host would not load the class; empty when it would."""
        reference = Reference(self.name)
        faults = check_contract(reference, self.candidate, self.plugin)
        if faults:
            return faults
        schemas = schemas_of(reference, self.candidate, self.plugin.meta)
        return (schemas,) if isinstance(schemas, Diagnostic) else ()

    @cached_property
    def loaded(self) -> LoadedPlugin:
        """The class as the host loads it; only for one without refusals."""
        schemas = schemas_of(Reference(self.name), self.candidate, self.plugin.meta)
        assert not isinstance(schemas, Diagnostic)
        return LoadedPlugin(self.candidate, self.plugin, self.plugin.meta, self.kinds, schemas, 0.0, "")

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Every block that must work: what the author gave or else the defaults, then the examples."""
        given = self.material.parameters
        first = Block("the defaults", self._defaults()) if given is None else Block("the parameters given to the kit", given)
        in_schema = parameters_schema(self.loaded).get("examples", ())
        written = [raw for raw in in_schema if isinstance(raw, Mapping)] if isinstance(in_schema, Sequence) else []
        return (
            first,
            *(Block(f"example {number} of the schema", raw) for number, raw in enumerate(written, 1)),
            *(Block(f"example {number} given to the kit", raw) for number, raw in enumerate(self.material.examples, 1)),
        )

    def judge(self, raw: Mapping[str, object]) -> Parameters | tuple[Diagnostic, ...]:
        """What the host makes of a block."""
        return check_parameters(self.loaded, raw)

    def valid_blocks(self) -> Iterator[tuple[Block, Parameters]]:
        """The blocks the host accepts, read."""
        for block in self.blocks:
            parameters = self.judge(block.raw)
            if isinstance(parameters, Parameters):
                yield block, parameters

    def _defaults(self) -> Mapping[str, object]:
        """Nothing but what is required, each at the first example of its field."""
        schema = parameters_schema(self.loaded)
        properties, required = schema.get("properties", {}), schema.get("required", ())
        assert isinstance(properties, Mapping)
        assert isinstance(required, Sequence)
        return {name: properties[name]["examples"][0] for name in required if properties.get(name, {}).get("examples")}


def subject_of(plugin: type[Plugin[Parameters]], candidates: Sequence[Candidate], material: Material | None = None) -> Subject:
    """The subject for a class, with those of the installed entry points that concern it."""
    subject = Subject(plugin, (), material or Material())
    offers = tuple(one for one in candidates if one.target.replace(" ", "") == subject.target or one.type == subject.name)
    return Subject(plugin, offers, subject.material)
