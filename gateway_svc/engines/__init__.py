"""Clients of inference engines, and the choice among them."""
