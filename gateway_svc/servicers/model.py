"""ModelService."""

from collections.abc import Sequence
from typing import Any

import grpc
from whippletree.v1 import model_pb2 as pb
from whippletree.v1.model_pb2_grpc import ModelServiceServicer

from gateway_svc import convert, convert_models, names
from gateway_svc.catalog import Catalog, check_model
from gateway_svc.engines import allowed
from gateway_svc.engines.choice import Rank
from gateway_svc.engines.leased import Leased
from gateway_svc.engines.pool import Pool
from gateway_svc.engines.watch import Watch
from gateway_svc.publish import Publisher
from gateway_svc.types import Engine, LeasedEngine, Model

Context = grpc.aio.ServicerContext[Any, Any]


class ModelServicer(ModelServiceServicer):
    """Models, from the catalog; new weights, by the publisher; engines, where `addresses` allows them to be."""

    def __init__(
        self,
        catalog: Catalog,
        publisher: Publisher,
        leased: Leased,
        pool: Pool,
        watch: Watch,
        addresses: Sequence[allowed.Pattern],
    ) -> None:
        self._catalog, self._publisher, self._leased, self._pool = catalog, publisher, leased, pool
        self._watch, self._allowed = watch, addresses

    async def RegisterModel(self, request: pb.RegisterModelRequest, context: Context) -> pb.RegisterModelResponse:
        model = convert_models.model_from_pb(request.model)
        check_model(model)
        for engine in model.engines:
            allowed.check(engine.address, self._allowed, "model.engines.address")
            self._pool.doubt(engine.address)
        once = convert.once("RegisterModel", request.request_id, request)
        made, existed = await self._catalog.register(model, once)
        self._watch.look()
        stored = convert_models.model_to_pb(made, [convert_models.unseen(engine) for engine in made.engines])
        return pb.RegisterModelResponse(model=stored, existed=existed)

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
        interrupt = convert.interrupts(request.in_flight)
        model = await self._publisher.publish(name, request.weight_version, request.weights_path, once, interrupt)
        return pb.PublishWeightsResponse(model=self._pack(model))

    async def RegisterEngine(self, request: pb.RegisterEngineRequest, context: Context) -> pb.RegisterEngineResponse:
        engine = convert_models.leased_from_pb(request)
        allowed.check(engine.engine.address, self._allowed, "engine.address")
        once = convert.once("RegisterEngine", request.request_id, request)
        await self._catalog.refresh()
        self._catalog.model(engine.model)
        made, existed = await self._leased.register(engine, once)
        self._pool.doubt(made.engine.address)
        self._watch.look()
        stored = convert_models.engine_to_pb(convert_models.unseen(made.engine, made))
        return pb.RegisterEngineResponse(engine=stored, existed=existed)

    async def HeartbeatEngine(self, request: pb.HeartbeatEngineRequest, context: Context) -> pb.HeartbeatEngineResponse:
        found = await self._leased.heartbeat(*names.engine(request.name))
        return pb.HeartbeatEngineResponse(engine=self._pack_leased(found))

    async def DeleteEngine(self, request: pb.DeleteEngineRequest, context: Context) -> pb.DeleteEngineResponse:
        once = convert.once("DeleteEngine", request.request_id, request)
        await self._leased.delete(*names.engine(request.name), once)
        return pb.DeleteEngineResponse()

    def _pack(self, model: Model) -> pb.Model:
        named = [self._seen(model, engine, None) for engine in model.engines]
        leased = [self._seen(model, one.engine, one) for one in self._leased.of(model.name)]
        return convert_models.model_to_pb(model, [*named, *leased])

    def _pack_leased(self, leased: LeasedEngine) -> pb.Engine:
        model = self._catalog.model(leased.model)
        return convert_models.engine_to_pb(self._seen(model, leased.engine, leased))

    def _seen(self, model: Model, engine: Engine, leased: LeasedEngine | None) -> convert_models.Seen:
        pool, address = self._pool, engine.address
        state = pb.ENGINE_STATE_HEALTHY
        if leased is not None and self._leased.expired(leased):
            state = pb.ENGINE_STATE_EXPIRED
        elif pool.rank(model, address) == Rank.UNREACHABLE:
            state = pb.ENGINE_STATE_UNREACHABLE
        times = (pool.seen(address), leased.heartbeat_time if leased is not None else None)
        return convert_models.Seen(
            engine=engine,
            leased=leased,
            state=state,
            weight_version=pool.weights_of(address),
            in_flight=pool.in_flight(address),
            last_seen=max((time for time in times if time is not None), default=None),
        )
