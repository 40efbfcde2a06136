"""Directories and files that are complete or not there at all, also after a crash."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replace_directory(target: Path) -> Iterator[Path]:
    """Yields a fresh directory beside `target`; when the block ends well it is flushed to disk and takes target's name.

    What stood there before is removed. When the block raises, the fresh directory is removed and `target` is untouched.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    try:
        temporary.chmod(0o755)
        yield temporary
        flush_directory(temporary)
        swap_directory(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def swap_directory(temporary: Path, target: Path) -> None:
    """Gives `temporary` target's name; removes what had it."""
    old = temporary.with_suffix(".old")
    if target.exists():
        target.rename(old)
    temporary.rename(target)
    flush(target.parent)
    if old.exists():
        shutil.rmtree(old)


def replace_text(target: Path, text: str) -> None:
    """Writes a small file so that a reader sees the old text or the new one."""
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.write_text(text)
    flush(temporary)
    temporary.rename(target)
    flush(target.parent)


def flush_directory(directory: Path) -> None:
    """Flushes a directory and all files under it to disk."""
    for path in directory.rglob("*"):
        flush(path)
    flush(directory)


def flush(path: Path) -> None:
    """Flushes one file or directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
