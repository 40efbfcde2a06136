"""The rpcs: unpack, await, pack."""
