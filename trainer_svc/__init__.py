"""The trainer: the driver (no torch) and, in `megatron`, the ranks."""
