"""The row of plain Ray Serve: an ingress that passes on what a worker yields. For the rivals' environment."""

from collections.abc import AsyncGenerator
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from benchmarks.gateway import engine

app = FastAPI()

# As a pool of Enginehouse has it: Serve's own 5 would have most requests wait.
MAX_ONGOING = 256


class Worker:
    async def events(self, body: dict[str, Any]) -> AsyncGenerator[bytes]:
        async for event in engine.events(engine.work_of(body)):
            yield event

    async def document(self, body: dict[str, Any]) -> bytes:
        return await engine.document(engine.work_of(body))


@serve.ingress(app)
class Ingress:
    def __init__(self, worker: DeploymentHandle[Any]) -> None:
        self._worker = worker
        self._streaming_worker = worker.options(stream=True)

    @app.post("/v1/chat/completions")
    async def chat(self, request: Request) -> Response:
        body = await request.json()
        if body["stream"]:
            events: Any = self._streaming_worker.events.remote(body)
            return StreamingResponse(events, media_type=engine.MEDIA_TYPE)
        return Response(await self._worker.document.remote(body), media_type="application/json")


def build(_: dict[str, str]) -> Application:
    deployed = serve.deployment(max_ongoing_requests=MAX_ONGOING, ray_actor_options={"num_cpus": 0.1})
    return deployed(Ingress).bind(deployed(Worker).bind())
