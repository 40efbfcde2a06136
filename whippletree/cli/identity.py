"""Keys of a system on one machine: made at its first start, found again by every command.

RUN_DIR/keys is the gateway's folder; RUN_DIR/operator.key is the key of whoever works here, RUN_DIR/service.key that of
bridge and controller. All of them are readable by their owner alone.
"""

import os
import time
from pathlib import Path

from whippletree.cli.console import UserError
from whippletree.errors import UnauthenticatedError
from whippletree.identity import folder
from whippletree.identity.operator_keys import check
from whippletree.settings import AccessSettings, is_loopback


def keys_folder(run_dir: Path) -> Path:
    """The gateway's folder of keys."""
    return run_dir / "keys"


def operator_file(run_dir: Path) -> Path:
    """The key of whoever works here."""
    return run_dir / "operator.key"


def service_file(run_dir: Path) -> Path:
    """The key of bridge and controller."""
    return run_dir / "service.key"


def prepare(run_dir: Path) -> None:
    """Make what is missing: a signing key, and keys where a file holds none that is valid. OSError, ValueError."""
    keys = keys_folder(run_dir)
    if not any((keys / "signing").glob("*.pem")):
        folder.add_signing_key(keys, now=time.time())
    for name, file in (("operator", operator_file(run_dir)), ("services", service_file(run_dir))):
        known = {key.key_id: key for key in folder.read_operators(keys)}
        try:
            check(file.read_text().strip() if file.exists() else "", known)
        except UnauthenticatedError:
            key = folder.add_operator(keys, f"{name} of {run_dir.name}", now=time.time())
            folder.write_secret(file, f"{key}\n".encode())


def access(run_dir: Path) -> AccessSettings:
    """The key of a folder's system; where it has none, that of WHIPPLETREE_API_KEY in the environment."""
    file = operator_file(run_dir)
    return AccessSettings(api_key_file=file) if os.access(file, os.R_OK) else AccessSettings()


def access_to(gateway: str, run_dir: Path) -> AccessSettings:
    """The key of WHIPPLETREE_API_KEY in the environment; where it says nothing, that of a folder's system.

    The folder's key is for this machine: UserError where `gateway`, host:port, is not on its loopback.
    """
    given = AccessSettings()
    if given.api_key.get_secret_value():
        return given
    if not is_loopback(gateway):
        raise UserError(f"--gateway {gateway} is not on this machine's loopback: put its key in WHIPPLETREE_API_KEY")
    return access(run_dir)
