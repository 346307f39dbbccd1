"""The plugin under test: its class, what the host says of it, and the parameter blocks to try it with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from endpick.api.data import AnyKey
from endpick.api.plugin import Parameters, Plugin
from endpick.diagnostics import Diagnostic
from endpick.host import discovery
from endpick.host.contract import check_contract
from endpick.host.discovery import Candidate, Installed, find
from endpick.host.kinds import Kind, kinds_of
from endpick.host.loader import LoadedPlugin
from endpick.host.parameters import check_parameters, parameters_schema
from endpick.host.resolution import Reference
from endpick.host.schema import fault_of_schemas
from endpick.installation import API_MAJOR, ENTRY_POINT_GROUP_PREFIX, HOST_DISTRIBUTION

if TYPE_CHECKING:
    import pytest

NOT_INSTALLED = "(not installed)"


@dataclass(frozen=True, slots=True)
class Block:
    """A `parameters:` block to try, as an operator would write it, and where the kit has it from."""

    origin: str
    raw: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Inputs:
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
class PluginUnderTest:
    """One plugin class under test.

    Attributes:
        plugin: The class; perhaps none at all, see `refusals`.
        offers: Installed entry points that lead to the class or bear its type.
        material: What its author gave.
    """

    plugin: type[Plugin[Parameters]]
    offers: tuple[Candidate, ...]
    material: Inputs = field(default_factory=Inputs)

    @cached_property
    def name(self) -> str:
        """The plugin type: the name of the entry point that leads to the class; the name of the class where none does."""
        aliases = getattr(self.plugin, "aliases", ())
        target = self.target
        return next(
            (one.type for one in self.offers if one.target.replace(" ", "") == target and one.type not in aliases),
            self.plugin.__qualname__,
        )

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
        fault = fault_of_schemas(reference, self.candidate, self.plugin)
        return () if fault is None else (fault,)

    @cached_property
    def loaded(self) -> LoadedPlugin:
        """The class as the host loads it; only for one without refusals."""
        return LoadedPlugin(self.candidate, self.plugin, self.name, self.kinds, 0.0, "")

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


def plugin_under_test(plugin: type[Plugin[Parameters]], candidates: Sequence[Candidate], material: Inputs | None = None) -> PluginUnderTest:
    """The subject for a class, with those of the installed entry points that concern it."""
    leading = PluginUnderTest(plugin, tuple(candidates), material or Inputs())
    name, target = leading.name, leading.target
    offers = tuple(one for one in candidates if one.target.replace(" ", "") == target or one.type == name)
    return PluginUnderTest(plugin, offers, leading.material)


MARK = "endpick-testing"
"""A file of this name in the metadata says that a test has made the distribution."""


def write_distribution(directory: Path, name: str, version: str, entry_points: Mapping[str, str], modules: Mapping[str, str]) -> None:
    """Write a distribution into a directory that is to be put on the import path.

    Args:
        directory: Made if it is not there.
        name: Of the distribution.
        version: Of the distribution.
        entry_points: Target (`module:Class`) of each plugin type.
        modules: Source of each module, by dotted name.

    Raises:
        FileExistsError: the directory holds this version of the distribution already.
    """
    for module, source in modules.items():
        file = directory / f"{module.replace('.', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    metadata = directory / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"{plugin_type} = {target}" for plugin_type, target in entry_points.items()]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{ENTRY_POINT_GROUP_PREFIX}{API_MAJOR}]", *lines, ""]))
    (metadata / MARK).touch()


def hide_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends, discovery sees endpick itself and distributions made by tests."""
    find_all = discovery.find_installed

    def visible(path: Sequence[str] | None = None) -> tuple[Installed, ...]:
        return tuple(one for one in find_all(path) if one.key == HOST_DISTRIBUTION or (Path(one.path) / MARK).exists())

    monkeypatch.setattr(discovery, "find_installed", visible)
