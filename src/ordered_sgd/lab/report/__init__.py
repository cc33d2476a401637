"""Tables and figures; never trains."""
