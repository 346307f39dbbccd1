"""Several pickers before one pool: they tell each other what their plugins learn."""
