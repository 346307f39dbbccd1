"""Codes of diagnostics, with severity and exit status."""

from __future__ import annotations

from enum import Enum, IntEnum, StrEnum, unique
from importlib.resources import files


@unique
class Code(Enum):
    """A kind of mistake: the name is the code, the value its title.

    A letter (E, W, N) for the severity, then two digits for the family: 01 YAML text, 02 document shape, 03 plugins found and loaded,
    04 parameters, 05 references and profiles, 06 data, 07 life cycle, 08 environment. A retired number is never used again.
    """

    E0101 = "the text is not valid YAML"
    E0102 = "a key appears twice in one mapping"
    E0103 = "a YAML tag is not allowed"
    E0104 = "the document is too large, too deep, or expands too much"
    E0105 = "the file is not UTF-8 text"
    E0106 = "a merge conflict was left in the file"
    E0107 = "the file holds more than one document"
    E0108 = "the file holds no document"
    E0109 = "a tab is used for indentation"
    E0110 = "the configuration file cannot be read"
    E0111 = "a key is not plain text"
    E0112 = "a merge key does not refer to a mapping"

    E0201 = "a field is not known here"
    E0202 = "a required field is missing"
    E0203 = "a value has the wrong type"
    E0204 = "the apiVersion is not supported"
    E0205 = "a value is not allowed here"
    E0206 = "a field needs apiVersion endpick/v1alpha1"
    E0207 = "a number is not finite, or too large"
    E0208 = "a feature gate is not known"
    E0209 = "the kind is not EndpointPickerConfig"
    E0210 = "a duration or quantity cannot be read"
    E0211 = "two entries claim the same priority"
    E0212 = "one setting is given under two names"
    E0213 = "YAML readers disagree about this number"
    E0214 = "a field belongs to another apiVersion"

    E0301 = "no installed plugin offers this type"
    E0302 = "an entry-point name is not a valid plugin type"
    E0303 = "an entry point names a module that does not exist"
    E0304 = "several distributions offer this plugin type"
    E0305 = "importing the plugin failed"
    E0306 = "the plugin needs another version of endpick"
    E0307 = "the plugin is not allowed by pluginPolicy"
    E0308 = "the installed plugin differs from the lock file"
    E0309 = "an entry point does not lead to a plugin class"
    E0310 = "the plugin class is of no kind"
    E0311 = "the plugin class leaves methods unimplemented"
    E0312 = "the plugin is installed under a former name only"
    E0313 = "a method of the plugin has the wrong signature or name"
    E0314 = "two plugins claim the same alias"
    E0315 = "a third-party distribution offers a built-in type"
    E0316 = "the distribution named in `from` does not offer this type"
    E0317 = "a requirement of the plugin's distribution is not met"
    E0318 = "a declaration of the plugin is malformed or misspelt"
    E0319 = "an entry point names an attribute that its module does not have"
    E0320 = "no plugin types are installed"
    E0321 = "the lock file cannot be used"
    E0322 = "the plugin is only offered for another major version of the plugin API"
    E0323 = "llm-d has this plugin type, and this release of endpick does not"

    E0324 = "a table of verbs cannot be used"
    E0325 = "a verb is offered twice"
    E0326 = "a verb cannot be imported"

    E0401 = "a parameter has a value that is not allowed"
    E0402 = "a parameter is not known to the plugin"
    E0403 = "the plugin refused to be built"
    E0404 = "the plugin's parameter schema refers to a remote document"
    E0405 = "the plugin's parameter schema is invalid"
    E0406 = "a required parameter is missing"
    E0407 = "a parameter has no effect, which apiVersion endpick/v1alpha1 does not allow"
    E0408 = "llm-d has this parameter, and this release of endpick does not"

    E0501 = "a reference names no defined instance"
    E0502 = "two instances have the same name"
    E0503 = "an instance is of the wrong kind for its place"
    E0504 = "a weight is given to an instance that does not score"
    E0505 = "a scheduling profile has no picker, or more than one"
    E0506 = "there is no profile handler, or more than one"
    E0507 = "there are more scheduling profiles than the profile handler can choose among"
    E0508 = "two scheduling profiles have the same name"
    E0509 = "the profile handler requires a scheduling profile that is not defined"
    E0510 = "an instance appears twice in one scheduling profile"
    E0511 = "a hook object refuses the configuration"
    E0512 = "two inference objectives have the same name"
    E0513 = "two models have the same name"
    E0520 = "instances refer to each other in a circle"

    E0601 = "nothing produces a data key that is needed"
    E0602 = "producer and consumer disagree on the type of a data key"
    E0603 = "data producers wait for each other in a circle"
    E0604 = "data would be produced after it is needed"
    E0605 = "a data key has two producers"
    E0606 = "a collector cannot read what its source delivers"
    E0607 = "a data source is not known"
    E0608 = "producer and consumer disagree on the scope of a data key"
    E0609 = "a data key has a malformed name"

    E0701 = "a hook implementation has a name that is no hook"
    E0702 = "a hook implementation cannot be called as it is written"
    E0703 = "a plugin did not start in time"
    E0704 = "a plugin failed while closing"
    E0705 = "a hook object cannot be loaded, or fails"
    E0706 = "a plugin failed while starting"

    E0801 = "an address is already in use, or may not be used"
    E0802 = "a certificate or key cannot be used"
    E0805 = "installed package metadata is inconsistent"
    E0806 = "nothing finds endpoints"
    E0807 = "there is too little memory to serve requests"
    E0808 = "a file to write cannot be opened"
    E0809 = "the gateway's Envoy is missing, or does not start"
    E0810 = "recorded decisions cannot be used"
    E0811 = "a hook object finds a fault in the environment"

    W0202 = "the apiVersion is deprecated"
    W0203 = "a field is deprecated"
    W0204 = "a section has no effect"
    W0205 = "a deprecated field is overridden by its successor"
    W0206 = "a name contains characters that look like others"
    W0207 = "a weight is negative"
    W0208 = "a value looks like a variable that nothing filled in"

    W0301 = "an instance is not used"
    W0302 = "package metadata is shadowed by another copy"
    W0303 = "a plugin type is a deprecated alias"
    W0304 = "a plugin is deprecated"
    W0305 = "distributions clash over a plugin type that is not used"
    W0306 = "a plugin printed something while it was imported"
    W0307 = "a plugin warned while it was imported"
    W0308 = "a plugin took long to import"
    W0309 = "a plugin is experimental"
    W0310 = "installed files are not what was installed"

    W0401 = "a parameter is deprecated"
    W0402 = "a parameter has no effect"

    W0501 = "a weight has no effect"
    W0502 = "an instance has no effect in this place"
    W0503 = "a hook object objects to the configuration"
    W0504 = "a scheduling profile rates nothing"
    W0505 = "a scheduling profile knows no load, and may send everything to one server"
    W0506 = "a picker ignores the scores of its scheduling profile"
    W0507 = "a picker names several endpoints, which not every gateway understands"
    W0520 = "a scheduling profile that the profile handler would run is not defined"

    W0602 = "nothing uses what a producer produces"
    W0603 = "nothing produces an optional data key"

    W0801 = "some recorded decisions are left out"
    W0802 = "a hook object objects to the environment"

    N0501 = "a missing part was filled in"
    N0502 = "a field of llm-d has hardly any effect"
    N0601 = "a default producer was added"
    N0602 = "a data key has several producers, and one was chosen"
    N0801 = "endpoint discovery is left to flags"

    def __str__(self) -> str:
        return self.name

    @property
    def title(self) -> str:
        """The title of the code, in one line without a full stop."""
        return self.value

    @property
    def family(self) -> int:
        """The family of the code as a number: 1 for YAML text, 2 for document shape."""
        return int(self.name[1:3])

    @property
    def severity(self) -> Severity:
        """The severity of the code, by its first letter."""
        return _SEVERITY_OF_LETTER[self.name[0]]

    @property
    def exit_code(self) -> ExitCode:
        """The exit status for this mistake; OK for warnings and notes."""
        if self.severity is not Severity.ERROR:
            return ExitCode.OK
        if self in _BLAMED_ON_PLUGIN:
            return ExitCode.PLUGIN_UNUSABLE
        if self in _BLAMED_ON_CONFIGURATION:
            return ExitCode.CONFIG_INVALID
        return _EXIT_CODE_OF_FAMILY[self.family]


class Severity(StrEnum):
    """Severity of a diagnostic; only errors prevent the start."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


_SEVERITY_OF_LETTER = {"E": Severity.ERROR, "W": Severity.WARNING, "N": Severity.NOTE}


class ExitCode(IntEnum):
    """Exit statuses. If several apply, the smallest wins."""

    OK = 0
    """The command succeeded, perhaps with warnings."""

    INTERNAL_ERROR = 1

    USAGE = 2

    CONFIG_INVALID = 3

    PLUGIN_UNUSABLE = 4
    """A plugin is missing, broken, incompatible or not as in the lock file."""

    FAILED = 5
    """The environment refused: port in use, unreadable file other than the configuration, failed start or stop."""

    DIFFERENT = 6
    """Two configurations do different things."""

    INTERRUPTED = 130
    """The command was ended by Ctrl-C."""


_EXIT_CODE_OF_FAMILY = {
    1: ExitCode.CONFIG_INVALID,
    2: ExitCode.CONFIG_INVALID,
    3: ExitCode.PLUGIN_UNUSABLE,
    4: ExitCode.CONFIG_INVALID,
    5: ExitCode.CONFIG_INVALID,
    6: ExitCode.CONFIG_INVALID,
    7: ExitCode.FAILED,
    8: ExitCode.FAILED,
}

_BLAMED_ON_CONFIGURATION = frozenset({Code.E0806})
_BLAMED_ON_PLUGIN = frozenset({Code.E0404, Code.E0405, Code.E0701, Code.E0702, Code.E0705})


def explanation(code: Code) -> str:
    """Return the Markdown page of a code, as `endpick explain` prints it: meaning, example and repair."""
    return files("endpick.diagnostics").joinpath("explain", f"{code.name}.md").read_text(encoding="utf-8")
