"""ModelService."""

from typing import Any

import grpc
from whippletree.v1 import model_pb2 as pb
from whippletree.v1.model_pb2_grpc import ModelServiceServicer

from gateway_svc import convert, names
from gateway_svc.catalog import Catalog, check_model
from gateway_svc.engines.pool import Pool
from gateway_svc.publish import Publisher
from gateway_svc.types import Model

Context = grpc.aio.ServicerContext[Any, Any]


class ModelServicer(ModelServiceServicer):
    """Models, from the catalog; new weights, by the publisher."""

    def __init__(self, catalog: Catalog, publisher: Publisher, pool: Pool) -> None:
        self._catalog, self._publisher, self._pool = catalog, publisher, pool

    async def RegisterModel(self, request: pb.RegisterModelRequest, context: Context) -> pb.RegisterModelResponse:
        model = convert.model_from_pb(request.model)
        check_model(model)
        for address in model.engines:
            self._pool.doubt(address)
        once = convert.once("RegisterModel", request.request_id, request)
        made, existed = await self._catalog.register(model, once)
        return pb.RegisterModelResponse(model=self._pack(made), existed=existed)

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        await self._catalog.refresh()
        return pb.GetModelResponse(model=self._pack(self._catalog.model(names.model(request.name))))

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        size = convert.page_size(request.page_size, 100, 1000)
        after = names.position("models", request.page_token, "page_token") if request.page_token else ""
        await self._catalog.refresh()
        found = [model for name, model in sorted(self._catalog.models.items()) if name > after]
        return pb.ListModelsResponse(
            models=[self._pack(model) for model in found[:size]],
            next_page_token=names.token("models", found[size - 1].name) if len(found) > size else "",
        )

    async def DeleteModel(self, request: pb.DeleteModelRequest, context: Context) -> pb.DeleteModelResponse:
        once = convert.once("DeleteModel", request.request_id, request)
        await self._catalog.delete_models(names.model(request.name), once)
        return pb.DeleteModelResponse()

    async def DeleteAllModels(self, request: pb.DeleteAllModelsRequest, context: Context) -> pb.DeleteAllModelsResponse:
        once = convert.once("DeleteAllModels", request.request_id, request)
        return pb.DeleteAllModelsResponse(deleted_count=await self._catalog.delete_models(None, once))

    async def PublishWeights(self, request: pb.PublishWeightsRequest, context: Context) -> pb.PublishWeightsResponse:
        once = convert.once("PublishWeights", request.request_id, request)
        name = names.model(request.name)
        model = await self._publisher.publish(name, request.weight_version, request.weights_path, once)
        return pb.PublishWeightsResponse(model=self._pack(model))

    def _pack(self, model: Model) -> pb.Model:
        return convert.model_to_pb(model, {address: self._pool.weights_of(address) for address in model.engines})
