"""Ideas that come as both a filter and a scorer: endpoint attributes, context length, topology, sessions."""
