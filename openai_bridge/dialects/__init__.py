"""Harness dialects: a body in, a `ChatRequest` out."""
