"""Endpoint files, as text."""

from __future__ import annotations

from endpick_builtin.endpoint_file import read_endpoint_file

GOOD = """\
endpoints:
- name: a
  address: 10.0.0.1
  port: "8000"
  labels: {llm-d.ai/role: decode}
- name: b
  namespace: prod
  address: 10.0.0.2
  port: "9000"
"""


def entry(name: str = "a", address: str = "10.0.0.1", port: str = '"8000"', more: str = "") -> str:
    return f"- {{name: {name}, address: {address}, port: {port}{more}}}\n"


def listing(*entries: str) -> str:
    return "endpoints:\n" + "".join(entries)


def read(text: str):
    return read_endpoint_file(text.encode())


def shown(endpoints) -> list[tuple[str, str, dict[str, str]]]:
    return [(endpoint.name, endpoint.address, dict(endpoint.labels)) for endpoint in endpoints]


EXPECTED = [("default/a", "10.0.0.1:8000", {"llm-d.ai/role": "decode"}), ("prod/b", "10.0.0.2:9000", {})]
