"""gRPC services of the driver."""
