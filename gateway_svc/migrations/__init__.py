"""Schema upgrades, applied in order when the store is opened. A released one is never edited."""
