"""Modules that a rollout may name in `preload` beside the agent's own libraries: they warm what imports leave cold."""
