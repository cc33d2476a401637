"""Leaves for the trainers of others, a file a partner; nothing else in the package imports them."""
