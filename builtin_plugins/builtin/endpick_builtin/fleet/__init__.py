"""State stores: what carries the learnt state of pickers."""
