"""How a list of runs is carried out: one after another, or over processes."""
