"""Several pickers share the learnt state of their plugins."""
