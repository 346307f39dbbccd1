"""State stores: they carry the learnt state of pickers."""
