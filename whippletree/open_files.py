"""How many connections a process may have: as many as the system lets it, instead of the few that shells begin with."""

import logging
import resource

log = logging.getLogger(__name__)


def raise_limit() -> int:
    """Raise this process's limit of open files to the highest that it may have, for itself and whatever it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:  # some systems name a limit that they do not allow
            log.warning("open files stay limited to %d: %s", soft, error)
            return soft
    return hard
