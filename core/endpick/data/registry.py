"""What a discovery reports to: it is looked at before the table hears of it, so that no other plugin meets what is no endpoint."""

from __future__ import annotations

import re
import threading
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from types import MappingProxyType

from endpick.api.datalayer import ModelRewrite, ModelTarget
from endpick.api.endpoint import Endpoint
from endpick.data.table import EndpointTable
from endpick.host.failures import kind_of

_UNFIT = re.compile(r"[^\x21-\x7e]|,")
"""What no address may have: it becomes a header, in which commas stand between addresses."""
_LONGEST_ADDRESS = 300
"""Of names the longest has 253 characters."""
_MOST_PORT = 65_535
_MOST_REPEATS = 4096
"""Names that come again in one list; an iterator without an end would hold the event loop for ever."""
_LONGEST_REASON = 1000
_GREATEST = 2**31 - 1


class Registry:
    """The `EndpointRegistry` of one discovery, until it is closed.

    Whatever is wrong is raised where the discovery calls, so that the fault is its own; the table stays as it was.
    """

    def __init__(self, table: EndpointTable) -> None:
        self._table = table
        self._is_open = True
        self._thread = threading.get_ident()
        self._rules: dict[int, tuple[ModelRewrite, ModelRewrite]] = {}
        """Those that were looked at before, by identity, and what was made of them: of thousands a few change."""

    def close(self) -> None:
        """Hear nothing more: another discovery may report now."""
        self._is_open = False

    def _hears(self) -> bool:
        """Whether what is reported counts.

        Raises:
            RuntimeError: another thread reports it: the table would change under what the event loop reads, and in part only.
        """
        if threading.get_ident() != self._thread:
            raise RuntimeError("a discovery reports on the thread of the event loop; from another one use loop.call_soon_threadsafe")
        return self._is_open

    def upsert(self, endpoint: Endpoint) -> None:
        """See `EndpointRegistry`."""
        checked = self._checked(endpoint)
        if self._hears():
            self._table.upsert(checked)

    def remove(self, name: str) -> None:
        """See `EndpointRegistry`."""
        plain = _text(name, "the name of an endpoint")
        if self._hears():
            self._table.remove(plain)

    def replace_all(self, endpoints: Iterable[Endpoint]) -> None:
        """See `EndpointRegistry`."""
        if self._hears():
            self._table.replace_all(self._each(endpoints))

    def set_objectives(self, priorities: Mapping[str, int]) -> None:
        """See `EndpointRegistry`."""
        plain = {_text(name, "the name of an objective"): _number(value, "a priority", -_GREATEST) for name, value in priorities.items()}
        if self._hears():
            self._table.set_objectives(plain)

    def set_rewrites(self, rewrites: Iterable[ModelRewrite]) -> None:
        """See `EndpointRegistry`."""
        looked_at = {id(each): self._rules.get(id(each)) or (each, _rewrite(each)) for each in rewrites}
        self._rules = {key: pair for key, pair in looked_at.items() if _is_settled(pair[0])}
        if self._hears():
            self._table.set_rewrites([plain for _, plain in looked_at.values()])

    def ready(self) -> None:
        """See `EndpointRegistry`."""
        if self._hears():
            self._table.ready()

    def stand_by(self, reason: str) -> None:
        """See `EndpointRegistry`."""
        plain = _text(reason, "the reason to stand by")[:_LONGEST_REASON]
        if self._hears():
            self._table.stand_by(plain)

    def until_ending(self) -> Coroutine[object, object, None]:
        """See `EndpointRegistry`."""
        return self._table.until_ending()

    def _each(self, endpoints: Iterable[Endpoint]) -> Iterator[Endpoint]:
        named: set[str] = set()
        repeats = 0
        for endpoint in endpoints:
            checked = self._checked(endpoint)
            if checked.name in named:
                repeats += 1
                if repeats > _MOST_REPEATS:
                    raise ValueError(f"the endpoints repeat names that have come before more than {_MOST_REPEATS} times")
            named.add(checked.name)
            yield checked

    def _checked(self, endpoint: object) -> Endpoint:
        """The endpoint, if it is one; made anew where its class may answer with code of its own.

        Raises:
            TypeError, ValueError: it is none.
        """
        if type(endpoint) is Endpoint and self._is_known(endpoint):
            return endpoint
        if not isinstance(endpoint, Endpoint):
            raise TypeError(f"an endpoint must be an Endpoint, not {kind_of(endpoint)}")
        name = _text(endpoint.name, "the name of an endpoint")
        if not name or not _is_encodable(name):
            raise ValueError("an endpoint needs a name, and half a surrogate pair is none")
        host, metrics_address = _address(endpoint.host, "host"), _address(endpoint.metrics_address, "metrics_address")
        port = _number(endpoint.port, "a port", 1)
        if port > _MOST_PORT:
            raise ValueError(f"a port is at most {_MOST_PORT}, not {port}")
        labels = endpoint.labels
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if type(endpoint) is Endpoint and type(labels) is MappingProxyType and _are_texts(labels) and endpoint.address == address:
            return endpoint
        plain = {_text(key, "a label"): _text(value, "a label") for key, value in labels.items()}
        return Endpoint(name, host, port, plain, metrics_address)

    def _is_known(self, endpoint: Endpoint) -> bool:
        """Whether the table has this very object, so that it was looked at before: lists of thousands change by a few."""
        name: object = endpoint.name
        return type(name) is str and self._table.find(name) is endpoint


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {kind_of(value)}")
    return str.__str__(value)


def _is_encodable(text: str) -> bool:
    """Whether it can be told to others: it is shown on the page of metrics, and to gateways where they are told of scores."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_ONLY_TEXTS = frozenset({str})


def _are_texts(labels: Mapping[str, str]) -> bool:
    """Whether names and values are all texts of Python's own; in C, because a pool of thousands has labels by the hundred thousand."""
    return _ONLY_TEXTS.issuperset(map(type, labels)) and _ONLY_TEXTS.issuperset(map(type, labels.values()))


def _address(value: object, what: str) -> str:
    text = _text(value, f"the {what} of an endpoint")
    if not 0 < len(text) <= _LONGEST_ADDRESS or _UNFIT.search(text):
        raise ValueError(f"the {what} of an endpoint must be an address, not {text!r:.100}")
    return text


def _number(value: object, what: str, least: int) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {kind_of(value)}")
    number = int.__int__(value)
    if not least <= number <= _GREATEST:
        raise ValueError(f"{what} must be between {least} and {_GREATEST}")
    return number


def _rewrite(rule: object) -> ModelRewrite:
    if not isinstance(rule, ModelRewrite):
        raise TypeError(f"a rewrite must be a ModelRewrite, not {kind_of(rule)}")
    return ModelRewrite(tuple([_text(model, "a model") for model in rule.models]), tuple([_target(each) for each in rule.targets]))


def _is_settled(rule: ModelRewrite) -> bool:
    """Whether it stays as it was looked at."""
    return type(rule) is ModelRewrite and type(rule.models) is tuple and type(rule.targets) is tuple


def _target(target: object) -> ModelTarget:
    if not isinstance(target, ModelTarget):
        raise TypeError(f"a target must be a ModelTarget, not {kind_of(target)}")
    return ModelTarget(_text(target.model, "a model"), _number(target.weight, "the weight of a target", 0))
