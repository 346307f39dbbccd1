"""Routes by the KV events that model servers publish over ZeroMQ."""
