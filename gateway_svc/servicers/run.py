"""RunService."""

from typing import Any

import grpc
from whippletree.v1 import run_pb2 as pb
from whippletree.v1.run_pb2_grpc import RunServiceServicer

from gateway_svc import convert, names
from gateway_svc.catalog import Catalog
from gateway_svc.deleter import Deleter

Context = grpc.aio.ServicerContext[Any, Any]


class RunServicer(RunServiceServicer):
    """Runs, from the catalog."""

    def __init__(self, catalog: Catalog, deleter: Deleter) -> None:
        self._catalog, self._deleter = catalog, deleter

    async def CreateRun(self, request: pb.CreateRunRequest, context: Context) -> pb.CreateRunResponse:
        once = convert.once("CreateRun", request.request_id, request)
        made, existed = await self._catalog.create_run(convert.run_from_pb(request), once)
        return pb.CreateRunResponse(run=convert.run_to_pb(made), existed=existed)

    async def GetRun(self, request: pb.GetRunRequest, context: Context) -> pb.GetRunResponse:
        await self._catalog.refresh()
        return pb.GetRunResponse(run=convert.run_to_pb(self._catalog.run(names.run(request.name))))

    async def ListRuns(self, request: pb.ListRunsRequest, context: Context) -> pb.ListRunsResponse:
        size = convert.page_size(request.page_size, 100, 1000)
        after = names.number("runs", request.page_token, "page_token")
        await self._catalog.refresh()
        found = [run for run in self._catalog.runs.values() if run.ordinal > after]
        return pb.ListRunsResponse(
            runs=[convert.run_to_pb(run) for run in found[:size]],
            next_page_token=names.token("runs", found[size - 1].ordinal) if len(found) > size else "",
        )

    async def DeleteRun(self, request: pb.DeleteRunRequest, context: Context) -> pb.DeleteRunResponse:
        once = convert.once("DeleteRun", request.request_id, request)
        count = await self._deleter.delete(names.run(request.name), request.force, once)
        return pb.DeleteRunResponse(deleted_rollout_count=count)
