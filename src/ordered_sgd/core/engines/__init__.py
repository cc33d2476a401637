"""How line 5 of Algorithm 1 is computed."""
