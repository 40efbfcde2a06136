"""TrainerBackendService: what the ranks call. Unpack, hand to `Backend`, pack."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
from whippletree.v1 import backend_pb2, backend_pb2_grpc

from trainer_svc.backend import Backend, Place
from trainer_svc.backend_convert import command_to_message, result_from_message
from trainer_svc.commands import Failed
from whippletree.serve import Service

FULL_NAME = backend_pb2.DESCRIPTOR.services_by_name["TrainerBackendService"].full_name


class BackendServicer(backend_pb2_grpc.TrainerBackendServiceServicer):
    """Serves one generation of ranks."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def StreamCommands(
        self, request: backend_pb2.StreamCommandsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[backend_pb2.StreamCommandsResponse]:
        """Commands of one rank, until Stop."""
        place = Place(
            rank=request.rank,
            world_size=request.world_size,
            data_parallel_rank=request.data_parallel_rank,
            data_parallel_size=request.data_parallel_size,
        )
        async for command_id, command in self._backend.stream(request.session, place):
            yield command_to_message(command_id, command)

    async def ReportResult(
        self, request: backend_pb2.ReportResultRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> backend_pb2.ReportResultResponse:
        """The result of one command; one that nobody waits for any more is ignored, but a failure counts always."""
        command = self._backend.waiting_for(request.command_id)
        if request.error:
            self._backend.report(request.session, request.command_id, request.rank, Failed(message=request.error))
        elif command is not None:
            result = result_from_message(request, command)
            self._backend.report(request.session, request.command_id, request.rank, result)
        return backend_pb2.ReportResultResponse()


def service(backend: Backend) -> Service:
    """For `whippletree.serve.listening`."""

    def register(server: grpc.aio.Server) -> None:
        backend_pb2_grpc.add_TrainerBackendServiceServicer_to_server(BackendServicer(backend), server)

    return Service(full_name=FULL_NAME, register=register)
