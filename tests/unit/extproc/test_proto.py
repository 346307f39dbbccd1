"""Our messages are the gateway's: generated from the .proto that is committed, with the field numbers of the real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from endpick._proto import ext_proc_pb2

ROOT = Path(__file__).resolve().parents[3]

THEIR_NAMES = {
    "BodyMutation": "envoy.service.ext_proc.v3.BodyMutation",
    "HeaderMap": "envoy.config.core.v3.HeaderMap",
    "HeaderValue": "envoy.config.core.v3.HeaderValue",
    "HeaderValueOption": "envoy.config.core.v3.HeaderValueOption",
    "HeaderValueOption.HeaderAppendAction": "envoy.config.core.v3.HeaderValueOption.HeaderAppendAction",
    "HttpStatus": "envoy.type.v3.HttpStatus",
    "Metadata": "envoy.config.core.v3.Metadata",
    "Metadata.FilterMetadataEntry": "envoy.config.core.v3.Metadata.FilterMetadataEntry",
    "ProcessingMode": "envoy.extensions.filters.http.ext_proc.v3.ProcessingMode",
    "ProcessingMode.BodySendMode": "envoy.extensions.filters.http.ext_proc.v3.ProcessingMode.BodySendMode",
    "ProcessingMode.HeaderSendMode": "envoy.extensions.filters.http.ext_proc.v3.ProcessingMode.HeaderSendMode",
    "StatusCode": "envoy.type.v3.StatusCode",
}
"""Where ours stand for messages outside `envoy.service.ext_proc.v3`."""

DUMP_THEIRS = """
import sys
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import Default
import envoy.service.ext_proc.v3.external_processor_pb2, envoy.type.v3.http_status_pb2
files, queue = {}, [Default().FindFileByName("envoy/service/ext_proc/v3/external_processor.proto")]
while queue:
    file = queue.pop()
    if file.name not in files:
        files[file.name] = file
        queue += file.dependencies
dump = FileDescriptorSet()
for file in files.values():
    file.CopyToProto(dump.file.add())
sys.stdout.buffer.write(dump.SerializeToString())
"""


@pytest.mark.long
def test_the_generated_messages_are_those_of_the_committed_proto():
    pytest.importorskip("grpc_tools.protoc")
    check = [sys.executable, ROOT / "tools/generate_proto.py", "--check"]
    run = subprocess.run(check, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_generated_code_accepts_the_oldest_protobuf():
    text = Path(ext_proc_pb2.__file__).read_text()
    assert "# Protobuf Python Version: 6.31.1\n" in text


@pytest.fixture(scope="module")
def theirs() -> dict[str, object]:
    """Descriptors of the real messages and enums by full name, read from xds-protos in a venv of its own."""
    venv = os.environ.get("ENDPICK_XDS_VENV")
    python = Path(venv) / "bin/python" if venv else None
    if python is None or not python.exists():
        pytest.skip("no xds-protos: set ENDPICK_XDS_VENV, or run make check, which installs it into .venv-xds")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    dump = subprocess.run([python, "-c", DUMP_THEIRS], capture_output=True, check=True, env=environment).stdout
    found: dict[str, object] = {}
    for file in FileDescriptorSet.FromString(dump).file:
        for message in file.message_type:
            _collect(f"{file.package}.{message.name}", message, found)
        for enum in file.enum_type:
            found[f"{file.package}.{enum.name}"] = enum
    return found


def _short(descriptor: Descriptor | EnumDescriptor) -> str:
    return descriptor.full_name.removeprefix("endpick.internal.ext_proc.")


OURS = [
    *ext_proc_pb2.DESCRIPTOR.message_types_by_name.values(),
    *(
        nested
        for message in ext_proc_pb2.DESCRIPTOR.message_types_by_name.values()
        for nested in (*message.nested_types, *message.enum_types)
    ),
    *ext_proc_pb2.DESCRIPTOR.enum_types_by_name.values(),
]


@pytest.mark.parametrize("ours", OURS, ids=_short)
def test_fields_have_the_numbers_and_types_of_envoy(ours, theirs):
    their = theirs[_their_name(ours)]
    if isinstance(ours, EnumDescriptor):
        numbers = {value.name: value.number for value in their.value}
        assert {value.name: value.number for value in ours.values}.items() <= numbers.items()
        return
    fields = {field.name: field for field in their.field}
    for field in ours.fields:
        their_field = fields[field.name]
        assert (field.number, field.type, field.is_repeated) == (
            their_field.number,
            their_field.type,
            their_field.label == FieldDescriptor.LABEL_REPEATED,
        ), field.full_name
        assert _type_name(field) == their_field.type_name, field.full_name
        oneof = their.oneof_decl[their_field.oneof_index].name if their_field.HasField("oneof_index") else None
        assert (field.containing_oneof.name if field.containing_oneof else None) == oneof, field.full_name


def test_final_statuses_are_those_envoy_accepts(theirs):
    their = {value.number for value in theirs["envoy.type.v3.StatusCode"].value}
    assert set(ext_proc_pb2.StatusCode.values()) == their


def test_the_real_messages_can_live_in_the_same_process():
    assert ext_proc_pb2.DESCRIPTOR.package == "endpick.internal.ext_proc"


def _collect(name: str, message: object, found: dict[str, object]) -> None:
    found[name] = message
    for nested in message.nested_type:
        _collect(f"{name}.{nested.name}", nested, found)
    for enum in message.enum_type:
        found[f"{name}.{enum.name}"] = enum


def _their_name(descriptor: Descriptor | EnumDescriptor) -> str:
    return THEIR_NAMES.get(_short(descriptor), f"envoy.service.ext_proc.v3.{_short(descriptor)}")


def _type_name(field: FieldDescriptor) -> str:
    target = field.message_type or field.enum_type
    if target is None:
        return ""
    return "." + (target.full_name if target.full_name.startswith("google.") else _their_name(target))
