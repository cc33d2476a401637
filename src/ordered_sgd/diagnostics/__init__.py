"""What training did to a model, beyond its error."""
