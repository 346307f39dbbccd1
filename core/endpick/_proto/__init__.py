"""Generated protobuf messages; `tools/generate_proto.py` writes them."""
