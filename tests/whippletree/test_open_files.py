"""The limit of open files."""

import subprocess
import sys

PROGRAM = """
import resource
from whippletree.open_files import raise_limit
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
print(raise_limit() == hard == resource.getrlimit(resource.RLIMIT_NOFILE)[0], hard > 64)
"""


def test_a_process_gets_as_many_open_files_as_it_may() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
