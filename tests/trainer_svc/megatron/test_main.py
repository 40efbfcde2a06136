"""The entry module stays light: whatever starts a process by `spawn` imports it again."""

import subprocess
import sys

from tests.trainer_svc.megatron.launch import ROOT


def test_importing_the_entry_module_starts_nothing_and_loads_no_torch() -> None:
    code = (
        "import sys, trainer_svc.megatron.__main__; sys.exit('torch' in sys.modules or 'megatron.core' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
