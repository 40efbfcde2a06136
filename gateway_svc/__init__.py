"""The gateway: the only owner of state. Rollouts, attempts, events, models, phase; picks the engine."""
