"""Free ports, chosen once so that a part that is started again keeps its address."""

import random
import socket
from pathlib import Path

HOST = "127.0.0.1"
LOWEST = 10_240


def is_free(port: int, host: str = HOST) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_ports(count: int, host: str = HOST) -> list[int]:
    """Distinct free ports below the range that the kernel gives to outgoing connections: nobody takes them meanwhile.

    RuntimeError where there are not enough.
    """
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = range(LOWEST, low) if low - LOWEST > 1000 else range(LOWEST, 65_536)
    found: list[int] = []
    for port in random.sample(candidates, k=min(len(candidates), 2000)):
        if len(found) == count:
            break
        if is_free(port, host):
            found.append(port)
    if len(found) < count:
        raise RuntimeError(f"no {count} free ports on {host}")
    return found
