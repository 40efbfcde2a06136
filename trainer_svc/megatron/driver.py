"""The rank's client of the driver: commands stream in, results are reported. A rank does one thing at a time."""

import logging
import time
from collections.abc import Iterator

import grpc
from whippletree.v1 import backend_pb2, backend_pb2_grpc

from trainer_svc.backend_convert import command_from_message, result_to_message
from trainer_svc.commands import Command, Result, Stop
from whippletree.channel import OPTIONS

CONNECT_SECONDS = 60.0
REPORT_SECONDS = 60.0  # deadline of one attempt, and how long attempts are repeated
PAUSE_SECONDS = 0.2

logger = logging.getLogger(__name__)


class DriverLostError(Exception):
    """The driver went away, or refuses this rank; there is nobody left to work for."""


class Driver:
    """One rank's connection. Iterate `commands`, and `report` the result of the command that came last."""

    def __init__(self, address: str, introduction: backend_pb2.StreamCommandsRequest) -> None:
        """`introduction` names this rank and the session it belongs to. Raises DriverLostError when nobody answers."""
        self._address = address
        self._introduction = introduction
        self._command_id = 0
        self._channel = grpc.insecure_channel(address, options=OPTIONS)
        self._stub = backend_pb2_grpc.TrainerBackendServiceStub(self._channel)
        try:
            grpc.channel_ready_future(self._channel).result(timeout=CONNECT_SECONDS)
        except grpc.FutureTimeoutError:
            raise DriverLostError(f"no driver answers at {address} within {CONNECT_SECONDS:.0f} s") from None

    def commands(self) -> Iterator[Command]:
        """Commands up to and with Stop. Raises DriverLostError when the stream ends in any other way.

        The stream lives as long as the rank, so it has no deadline; the channel's keep-alive notices a dead driver.
        """
        stream = self._stub.StreamCommands(self._introduction)
        try:
            for message in stream:
                self._command_id = message.command_id
                command = command_from_message(message)
                yield command
                if isinstance(command, Stop):
                    return
        except grpc.RpcError as error:
            raise DriverLostError(f"the driver at {self._address} is gone: {_describe(error)}") from None
        finally:
            stream.cancel()
        raise DriverLostError(f"the driver at {self._address} ended the stream without Stop")

    def report(self, result: Result) -> None:
        """Reports the last command's result; repeated while the driver is unavailable. Raises DriverLostError."""
        introduction = self._introduction
        request = result_to_message(self._command_id, introduction.rank, introduction.session, result)
        end = time.monotonic() + REPORT_SECONDS
        while True:
            try:
                self._stub.ReportResult(request, timeout=REPORT_SECONDS)
                return
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE or time.monotonic() > end:
                    raise DriverLostError(f"the driver does not take results: {_describe(error)}") from None
            time.sleep(PAUSE_SECONDS)

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()


def _describe(error: grpc.RpcError) -> str:
    """Status code and the server's words."""
    return f"{error.code().name}: {error.details()}"
