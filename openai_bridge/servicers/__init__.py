"""The bridge's rpcs."""
