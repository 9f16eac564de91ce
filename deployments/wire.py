"""What crosses a handle between the ingress and a pool: plain dicts and bytes, so that their versions may differ."""

from typing import TypedDict

from deployments.engine import Endpoint, EngineRequest


class WireRequest(TypedDict):
    endpoint: Endpoint
    body: bytes
    request_id: str


class Head(TypedDict):
    """What comes before an answer's bytes."""

    status: int
    media_type: str
    headers: dict[str, str]


class WireResponse(Head):
    body: bytes


def pack(request: EngineRequest) -> WireRequest:
    return {"endpoint": request.endpoint, "body": request.body, "request_id": request.request_id}


def unpack(request: WireRequest) -> EngineRequest:
    return EngineRequest(request["endpoint"], request["body"], request["request_id"])
