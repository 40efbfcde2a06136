"""The ranks: megatron-core models started by torchrun, on CPU with gloo or on GPUs with NCCL."""
