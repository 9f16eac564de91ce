"""What crosses a handle between the ingress and a pool: plain dicts and bytes, so that their versions may differ."""

from typing import Any, Literal, NotRequired, TypedDict

from deployments.engine import Endpoint, EngineRequest


class WireRequest(TypedDict):
    endpoint: Endpoint
    body: bytes
    request_id: str
    adapter: str | None
    prefix: NotRequired[list[int]]  # blocks of its prompt, for the router: see deployments/replica_choice/prefix.py


# How an answer by the token plane went: it was sent; or the ingress can't be reached by it, and nothing began.
PlaneOutcome = Literal["streamed", "unreachable"]


class Description(TypedDict):
    """What a pool says of itself."""

    engine: str
    capabilities: dict[str, Any]  # `engine.Capabilities`, as a document
    adapters: NotRequired[list[str]]  # of its configuration; those that were loaded live are in the adapter store
    replica_choice: NotRequired[str]  # `prefix`: it wants to know the blocks of prompts


class Refusal(TypedDict):
    """Why a replica can't load an adapter: the parts of an `ApiError`."""

    message: str
    param: str | None
    code: str | None


class Head(TypedDict):
    """What comes before an answer's bytes."""

    status: int
    media_type: str
    headers: dict[str, str]


class WireResponse(Head):
    body: bytes


def pack(request: EngineRequest) -> WireRequest:
    return {
        "endpoint": request.endpoint,
        "body": request.body,
        "request_id": request.request_id,
        "adapter": request.adapter,
    }


def unpack(request: WireRequest) -> EngineRequest:
    return EngineRequest(
        endpoint=request["endpoint"],
        body=request["body"],
        request_id=request["request_id"],
        adapter=request["adapter"],
    )
