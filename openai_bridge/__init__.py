"""The bridge: harness dialects to token ids and back. Stateless."""
