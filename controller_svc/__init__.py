"""The controller: rollouts to running agents, as local processes or Kubernetes Jobs."""
