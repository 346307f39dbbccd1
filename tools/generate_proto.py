"""Generate `endpick._proto` from its .proto file; with `--check`, say whether what is committed is fresh.

Generated code runs with the protobuf version it was made for and newer ones only, so it is made by the tools that belong
to the oldest version we support: `pip install grpcio-tools==1.76.0` in a venv of its own. The check compares messages, not
files, and runs with any version.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

TOOLS = "1.76.0"
CORE = Path(__file__).resolve().parent.parent / "core"
SOURCE = "endpick/_proto/ext_proc.proto"


def run_protoc(*outputs: str) -> None:
    """Compile the .proto file."""
    include = Path(protoc.__file__).parent / "_proto"
    status = protoc.main(["protoc", f"-I{CORE}", f"-I{include}", *outputs, SOURCE])
    if status != 0:
        raise SystemExit(f"protoc ended with status {status}")


def is_fresh() -> bool:
    """Whether the committed messages are those of the .proto file."""
    sys.path.insert(0, str(CORE))
    from endpick._proto import ext_proc_pb2  # noqa: PLC0415 (generating must work where there is nothing to import yet)

    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder) / "descriptors"
        run_protoc(f"--descriptor_set_out={dump}")
        (fresh,) = FileDescriptorSet.FromString(dump.read_bytes()).file
    committed = FileDescriptorProto()
    ext_proc_pb2.DESCRIPTOR.CopyToProto(committed)
    for message in (*fresh.message_type, *committed.message_type):
        forget_json_names(message)
    return committed == fresh


def forget_json_names(message: DescriptorProto) -> None:
    """The compiler writes them into descriptor sets and leaves them out of generated code."""
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        forget_json_names(nested)


def main() -> int:
    """Generate what is stale, or check; the exit code of a check is 1 when the committed code is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the committed code is stale")
    arguments = parser.parse_args()
    if is_fresh():
        return 0
    if arguments.check:
        print("endpick._proto is stale: run python tools/generate_proto.py")
        return 1
    if version("grpcio-tools") != TOOLS:
        print(f"generating takes grpcio-tools {TOOLS}, here is {version('grpcio-tools')}: use a venv of its own")
        return 2
    run_protoc(f"--python_out={CORE}", f"--pyi_out={CORE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
