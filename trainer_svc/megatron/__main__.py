"""`torchrun -m trainer_svc.megatron --driver HOST:PORT`: starts one rank.

Guarded and almost without imports: whatever starts a process by `spawn` imports this module again.
"""

import sys


def main() -> int:
    """The rank's exit status."""
    from trainer_svc.megatron.rank import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
