"""The rows of ray.serve.llm: its own ingress and server around the engine. For the rivals' environment."""

import os
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from ray.llm._internal.serve.core.configs.openai_api_models import ChatCompletionResponse
from ray.llm._internal.serve.core.engine.protocol import LLMEngine
from ray.llm._internal.serve.core.server.llm_server import LLMServer
from ray.serve import Application
from ray.serve.llm import LLMConfig, build_openai_app

from benchmarks.gateway import engine
from benchmarks.gateway.engine import MODEL


class BenchmarkEngine(LLMEngine):
    """The engine that all rows have, as ray.serve.llm's."""

    def __init__(self, llm_config: LLMConfig) -> None:
        self.llm_config = llm_config

    async def start(self) -> None:
        pass

    def routing_stats(self) -> dict[str, Any]:
        return {}

    async def check_health(self) -> None:
        pass

    # A generator, as its documentation asks for; its annotation is of something else.
    async def chat(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any]:  # type: ignore[override]
        """Strings where the answer is streamed, else one object."""
        usage = bool((request.stream_options or {}).get("include_usage"))
        work = engine.work(_content(request.messages[-1]), stream=bool(request.stream), usage=usage)
        if not work.stream:
            yield ChatCompletionResponse.model_validate_json(await engine.document(work))
            return
        async for event in engine.events(work):
            yield event.decode()

    async def build_asgi_app(self) -> FastAPI:
        """The engine's own server, which requests reach with direct streaming."""
        app = FastAPI()

        @app.post("/v1/chat/completions")
        async def chat(request: Request) -> Response:
            work = engine.work_of(await request.json())
            if work.stream:
                return StreamingResponse(engine.events(work), media_type=engine.MEDIA_TYPE)
            return Response(await engine.document(work), media_type="application/json")

        return app

    def _never(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("the benchmark asks for chats only")

    resolve_lora = reset_prefix_cache = _never
    completions = embeddings = transcriptions = score = tokenize = detokenize = _never


class BenchmarkServer(LLMServer):
    _default_engine_cls: Any = BenchmarkEngine

    @classmethod
    def get_deployment_options(cls, llm_config: Any) -> dict[str, Any]:  # type: ignore[override]  # as LLMServer does
        return dict(llm_config.deployment_config)  # the stock one asks vLLM where to place an engine


def build(_: dict[str, str]) -> Application:
    """One replica of each deployment, as the other rows have; all else is the defaults."""
    one: dict[str, Any] = {"num_replicas": 1, "ray_actor_options": {"num_cpus": 0.1}}
    config = LLMConfig(
        model_loading_config={"model_id": MODEL, "model_source": MODEL},
        deployment_config=one,
        server_cls=BenchmarkServer,
    )
    document: dict[str, Any] = {"llm_configs": [config]}
    if os.environ.get("RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING") != "1":  # which has no ingress to configure
        document["ingress_deployment_config"] = one
    return build_openai_app(document)


def _content(message: Any) -> str:
    content: str = message["content"] if isinstance(message, dict) else message.content
    return content
