"""Fails where a tracked file speaks of one machine: absolute paths of it, download addresses, private host names.

In: the files that git knows, but for generated and third parties' ones. Out: one line per finding, exit code 1.
"""

import re
import subprocess
import sys
from pathlib import Path

SKIPPED = re.compile(
    r"(^third_party/|^LICENSE$|^requirements/|_pb2(_grpc)?\.pyi?$|\.(pb|png|svg|lock)$|package-lock\.json$)"
)
RULES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("a path of one machine", re.compile(r"(?<![\w.$}/-])/(work|home|root|Users|mnt)/\w")),
    ("a temporary folder; use tmp_path or mktemp", re.compile(r"(?<![\w.$}/-])/(tmp|var/tmp)/\w")),
    (
        "an address of a package registry",
        re.compile(r"(files\.python" r"hosted|pypi\.org/simple|registry\.npm" r"js|download\.py" r"torch)", re.I),
    ),
    ("a private address", re.compile(r"\b(10\.\d+\.\d+\.\d+|192\.168\.\d+\.\d+|172\.(1[6-9]|2\d|3[01])\.\d+\.\d+)\b")),
    ("a private host name", re.compile(r"\b[\w-]+\.(internal|corp|lan|intranet)\b(?!\()")),
)


def findings(name: str, text: str) -> list[str]:
    """Lines `file:line: what: text` for every rule that a line breaks."""
    return [
        f"{name}:{number}: {what}: {line.strip()[:120]}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in RULES
        if pattern.search(line)
    ]


def main() -> int:
    """Check every tracked text file."""
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, check=True).stdout
    found: list[str] = []
    for name in filter(None, listed.split("\0")):
        path = Path(name)
        if SKIPPED.search(name) or not path.is_file():
            continue
        try:
            found += findings(name, path.read_text())
        except UnicodeDecodeError:
            continue
    print("\n".join(found) if found else "no machine's names in tracked files")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
