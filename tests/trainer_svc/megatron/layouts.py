"""Runs under torchrun with two ranks: the same step in many layouts and placements; writes each one's gradient.

`torchrun -m tests.trainer_svc.megatron.layouts MODEL OUT`
"""

import sys
from pathlib import Path

CASES = ("dp_even", "dp_uneven", "dp_empty", "dp_none", "dp_policy", "tp", "pp", "cp")


def main() -> None:
    """Writes OUT/CASE.npz, and OUT/CASE.txt with the figures of a whole step of that case."""
    import numpy as np
    import torch.distributed as dist
    from megatron.core import parallel_state

    from tests.trainer_svc.megatron import samples as s
    from trainer_svc import commands as c
    from trainer_svc.megatron.device import find_device, join, leave
    from trainer_svc.megatron.settings import Layout
    from trainer_svc.microbatch import MicroBatch, empty_micro_batch

    path, out = Path(sys.argv[1]), Path(sys.argv[2])
    samples = s.make_samples()
    layouts = {"tp": Layout(tensor=2), "pp": Layout(pipeline=2), "cp": Layout(context=2)}
    shared = s.pack_under(samples, 60)
    placements: dict[str, list[list[MicroBatch]]] = {
        "dp_even": [[s.pack(samples[:4])], [s.pack(samples[4:])]],
        "dp_uneven": [s.pack_under(samples[:5], 1), [s.pack(samples[5:])]],
        "dp_empty": [s.pack_under(samples, 40), [empty_micro_batch()]],
        "dp_none": [[s.pack(samples)], []],
        "dp_policy": [[s.pack(samples[1:])], [empty_micro_batch(), s.pack(samples[:1])]],
    }
    for case in CASES:
        layout = layouts.get(case, Layout())
        join(find_device(), layout, seed=1)
        worker = s.load_worker(path, layout)
        own = placements[case][parallel_state.get_data_parallel_rank()] if case in placements else shared
        loss = c.LossKind.POLICY if case == "dp_policy" else c.LossKind.SFT
        gradient = s.gradients(worker, path, own, loss)
        (done,) = s.execute(worker, *s.train_commands(own, s.step_command(loss)))
        (answer,) = s.execute(worker, c.Logprobs(), *own, c.EndOfBatches())
        assert isinstance(answer, c.LogprobsDone)
        assert [row.row for row in answer.rows] == [row for batch in own for row in batch.rows]
        if dist.get_rank() == 0:
            np.savez(out / f"{case}.npz", **gradient)
            (out / f"{case}.txt").write_text(repr(done))
        parallel_state.destroy_model_parallel()
    leave()


if __name__ == "__main__":
    main()
