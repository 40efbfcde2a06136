"""The device: which collective backend, number type and fused kernels go with the hardware that is there."""

import logging
import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel

from trainer_svc.megatron import cpu
from trainer_svc.megatron.settings import Layout

COLLECTIVE_TIMEOUT = timedelta(minutes=30)  # ranks wait in a collective while the driver samples rollouts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The hardware of this rank."""

    torch_device: torch.device
    backend: str  # nccl | gloo
    dtype: torch.dtype  # of parameters and activations

    @property
    def is_cuda(self) -> bool:
        """True on a GPU."""
        return self.torch_device.type == "cuda"


def find_device() -> Device:
    """This rank's GPU with bf16, or the CPU with fp32."""
    if not torch.cuda.is_available():
        return Device(torch_device=torch.device("cpu"), backend="gloo", dtype=torch.float32)
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(local_rank)
    return Device(torch_device=torch.device("cuda", local_rank), backend="nccl", dtype=torch.bfloat16)


def join(device: Device, layout: Layout, seed: int) -> None:
    """Joins the process group that torchrun describes and builds the parallel groups."""
    if not device.is_cuda:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        cpu.install()
    if not dist.is_initialized():
        dist.init_process_group(device.backend, timeout=COLLECTIVE_TIMEOUT)
    parallel_state.initialize_model_parallel(
        layout.tensor,
        layout.pipeline,
        context_parallel_size=layout.context,
        create_gloo_process_groups=True,
    )
    torch.manual_seed(seed)
    # The inference tracker needs no CUDA generator; right as long as there is no dropout.
    tensor_parallel.model_parallel_cuda_manual_seed(seed, inference_rng_tracker=not device.is_cuda)


def leave() -> None:
    """Leaves all groups."""
    parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()


def config_flags(device: Device) -> dict[str, Any]:
    """TransformerConfig fields for megatron's local layers: no kernel that needs Apex or TransformerEngine."""
    return {
        # Weights are always loaded, but initialization also marks which parameters are split over tensor ranks: without
        # the marks the gradient norm counts one rank's part alone.
        "perform_initialization": True,
        "use_cpu_initialization": not device.is_cuda,
        "masked_softmax_fusion": False,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "apply_rope_fusion": False,
        "gradient_accumulation_fusion": False,
        "cross_entropy_loss_fusion": False,
        "persist_layer_norm": False,
        "batch_p2p_comm": False,  # gloo has no batched point-to-point; the plain one is right on both
        "batch_p2p_sync": False,
        "moe_token_dispatcher_type": "alltoall",  # asked for by variable_seq_lengths, also in dense models
        "variable_seq_lengths": True,
    }
