"""Measurements of the product; each prints one JSON object as its last line."""
