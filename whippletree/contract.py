"""What the contract holds, read from the generated code: for reflection at the front door and for Envoy."""

import importlib
import pkgutil

import whippletree.v1
from google.protobuf import descriptor_pool

PRIVATE = frozenset({"whippletree.v1.TrainerBackendService"})
"""Services that are not reached through Envoy: the ranks call the trainer's driver directly."""


def public_services() -> tuple[str, ...]:
    """Full names of all services that are reached through Envoy, by name; imports their generated modules."""
    names: set[str] = set()
    for module in pkgutil.iter_modules(whippletree.v1.__path__):
        if module.name.endswith("_pb2"):
            importlib.import_module(f"whippletree.v1.{module.name}")
            file = descriptor_pool.Default().FindFileByName(f"whippletree/v1/{module.name.removesuffix('_pb2')}.proto")
            names.update(service.full_name for service in file.services_by_name.values())
    return tuple(sorted(names - PRIVATE))
