"""Text Generation Inference's own routes: what its OpenAI routes don't tell, such as each token of a completion.

The client is `huggingface_hub`'s. It is made anew for each request, over connections of our making: left to itself it
sends the Hub's token of this machine to the server, follows redirects, and keeps every stream until it is closed.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import httpx2
from huggingface_hub import AsyncInferenceClient, TextGenerationOutputToken, set_async_client_factory
from huggingface_hub.errors import HfHubHTTPError, InferenceTimeoutError, OverloadedError, TextGenerationError

from deployments import tgi_answers, tgi_requests
from deployments.engine import EngineRequest, EngineResponse
from deployments.errors import ApiError
from deployments.openai_layer.answer import Plan, respond
from deployments.openai_layer.choice import Usage, deltas
from deployments.openai_layer.documents import CompletionDocuments
from deployments.openai_layer.layer import fit
from deployments.openai_layer.schema import CompletionRequest
from deployments.openai_layer.tokens import Finish, FinishReason, Token
from deployments.tgi_requests import DEFAULT_COMPLETION_TOKENS, Terms
from deployments.upstream import DOCUMENT_LIMIT, Upstream
from deployments.upstream_args import UpstreamArgs, trust
from deployments.upstream_errors import error_answer
from deployments.upstream_server import Server, bad_gateway, choose, timed_out

Document = dict[str, Any]
_KINDS = {  # the library's errors, by the word that TGI has for them
    "GenerationError": "generation",
    "IncompleteGenerationError": "incomplete_generation",
    "OverloadedError": "overloaded",
    "ValidationError": "validation",
}


class Native:
    """The native routes of a pool's servers."""

    def __init__(self, upstream: Upstream, args: UpstreamArgs) -> None:
        self._upstream = upstream
        self._args = args
        self._verify: ssl.SSLContext | bool = True

    async def start(self) -> None:
        """
        Raises:
            ValueError: the certificates can't be read.
        """
        verify = trust(self._args)
        self._verify = await asyncio.to_thread(httpx2.create_ssl_context) if verify is True else verify
        set_async_client_factory(self._connect)

    def _connect(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            verify=self._verify,
            timeout=httpx2.Timeout(self._args.read_timeout_s, connect=self._args.connect_timeout_s),
            follow_redirects=False,
            trust_env=False,
            event_hooks={"request": [self._authorize], "response": [_read_errors]},
        )

    async def _authorize(self, request: httpx2.Request) -> None:
        request.headers.pop("authorization", None)
        if self._upstream.api_key is not None:
            request.headers["authorization"] = f"Bearer {self._upstream.api_key}"

    async def complete(
        self, request: CompletionRequest, terms: Terms, asked: EngineRequest, model: str
    ) -> EngineResponse:
        """Answer a completion.

        Raises:
            ApiError: it is refused, fails before its first token, or no server can be reached.
        """
        prompts = [str(prompt) for prompt in request.prompt]
        counts = [await self._count(prompt, asked.request_id) for prompt in prompts]
        texts: dict[int, str] = {}
        usage = Usage(sum(counts))
        choices = []
        for prompt, count in zip(prompts, counts, strict=True):
            most = request.max_tokens or DEFAULT_COMPLETION_TOKENS
            if terms.limits.max_total_tokens is not None:
                most = fit(count, most, terms.limits.max_total_tokens, "prompt")
            parameters = tgi_requests.native(request, most, terms)
            tokens = self._generate(prompt, parameters, texts, asked.request_id, stream=bool(request.stream))
            choices.append(deltas(tokens, request.stop, usage))
        documents = CompletionDocuments(
            f"cmpl-{asked.request_id}",
            model,
            lambda token_id: texts[token_id].encode(),
            request.logprobs is not None,
            echoes=prompts if request.echo else (),
        )
        return await respond(Plan(choices, usage, documents), request)

    async def _count(self, prompt: str, request_id: str) -> int:
        """The prompt's tokens, the beginning of a sequence among them."""
        tokens = await self._tokenize({"inputs": prompt}, request_id)
        if not isinstance(tokens, list):
            raise bad_gateway("The TGI server answered with no tokens.")
        return len(tokens)

    async def _tokenize(self, body: Document, request_id: str) -> Any:
        data = json.dumps(body, ensure_ascii=False).encode()
        reply = await self._upstream.send("/tokenize", data, request_id, at_root=True)
        async with aclosing(reply):
            answer = await reply.read(DOCUMENT_LIMIT)
        try:
            document = json.loads(answer)
        except ValueError:
            document = None
        if reply.status != 200:
            if isinstance(document, dict) and isinstance(document.get("error"), str):
                raise tgi_answers.error(reply.status, document["error"], document.get("error_type"), "prompt")
            error_answer(reply.status, reply.headers, answer, "tokenize", self._upstream.api_key)
        return document

    async def _generate(
        self, prompt: str, parameters: Document, texts: dict[int, str], request_id: str, *, stream: bool
    ) -> AsyncGenerator[Token | Finish]:
        """Tokens as they are generated, or at once where nobody waits for each. Closing it ends the request.

        `texts` becomes what each token id stands for, as far as the server tells.

        Raises:
            ApiError: the request is refused or fails, or no server can be reached.
        """
        tried: list[Server] = []
        reasons: list[str] = []
        while (server := choose(self._upstream.servers, tried)) is not None:
            tried.append(server)
            began = False
            try:
                with self._upstream.using(server):
                    outputs = self._outputs(server, prompt, parameters, request_id, stream=stream)
                    async with aclosing(outputs):
                        async for token, top, details in outputs:
                            began = server.spoke = True
                            for one in (token, *top):
                                texts[one.id] = one.text
                            yield _token(token, top)
                            if details is not None:
                                yield Finish(_reason(details.finish_reason), details.generated_tokens)
                                return
                raise bad_gateway("The TGI server's stream ended before the answer did.")
            except (httpx2.HTTPError, ValueError, TypeError, AttributeError, KeyError) as error:
                # As for every request: a server that has begun to answer is never left for another.
                busy = isinstance(error, OverloadedError) and choose(self._upstream.servers, tried) is not None
                if began or not (busy or _is_unreached(error)):
                    raise self._error(error) from error
                reasons.append("overloaded" if busy else "no connection")
                if not busy:
                    self._upstream.failed(server, reasons[-1])
        raise self._upstream.unavailable(reasons)

    async def _outputs(
        self, server: Server, prompt: str, parameters: Document, request_id: str, *, stream: bool
    ) -> AsyncGenerator[tuple[Any, Sequence[Any], Any]]:
        """Each token, its alternatives, and with the last one the details of the whole."""
        route = "generate_stream" if stream else "generate"
        async with AsyncInferenceClient(headers={"x-request-id": request_id}) as client:
            answer = await client.text_generation(
                prompt, model=f"{server.root}/{route}", stream=stream, details=True, **parameters
            )
            if stream:
                async for output in answer:
                    yield output.token, output.top_tokens or (), output.details
                return
            details = answer.details
            if not details.tokens:
                raise bad_gateway("The TGI server answered without any token.")
            # The library leaves lists in lists as they came.
            parse = TextGenerationOutputToken.parse_obj_as_instance
            tops = [list(map(parse, top)) for top in details.top_tokens or [()] * len(details.tokens)]
            for at, (token, top) in enumerate(zip(details.tokens, tops, strict=True), 1):
                yield token, top, details if at == len(details.tokens) else None

    def _error(self, error: Exception) -> ApiError:
        """What the library raises as this API's own errors."""
        match error:
            case TextGenerationError():
                return tgi_answers.error(500, str(error), _KINDS.get(type(error).__name__), "prompt")
            case HfHubHTTPError(response=response):
                try:
                    error_answer(
                        response.status_code, response.headers, response.content, "completions", self._upstream.api_key
                    )
                except ApiError as told:
                    return told
                return bad_gateway(f"The TGI server answered with status {response.status_code}.")
            case InferenceTimeoutError() | httpx2.TimeoutException():
                return timed_out(self._args.read_timeout_s)
            case httpx2.TransportError():
                return bad_gateway("The TGI server broke off its answer.")
        return bad_gateway("The TGI server's answer isn't of the form that it publishes.")


async def _read_errors(response: httpx2.Response) -> None:
    """The library looks at the bodies of errors, of which those of streams haven't been read."""
    if response.status_code >= 400:
        await response.aread()


def _token(token: Any, top: Sequence[Any]) -> Token:
    """What ends a sequence, and other special tokens, say nothing."""
    alternatives = tuple((one.id, one.logprob) for one in top)
    return Token(token.id, token.logprob or 0.0, alternatives, "" if token.special else token.text)


def _is_unreached(error: Exception) -> bool:
    """Whether no connection could be had: the library wraps timeouts."""
    cause = error.__cause__ if isinstance(error, InferenceTimeoutError) else error
    return isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout)


def _reason(told: str) -> FinishReason:
    return "length" if told == "length" else "stop"
