"""ext_proc alone: what one request costs each transport, loaded by h2load."""
