"""The local runner: attempts as processes of this machine."""
