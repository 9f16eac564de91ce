"""Prompts as tokens: a conversation by the model's chat template, a text by its tokenizer, tokens as they are."""

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from deployments.errors import ApiError
from deployments.openai_layer.schema import Message
from deployments.openai_layer.text import Tokenizer
from deployments.openai_layer.tokens import TokenEngine


class Prompts:
    """Makes an engine's prompts, beside the event loop. Every method raises `ApiError`, 400, for what it can't make."""

    def __init__(self, engine: TokenEngine) -> None:
        self._engine = engine
        self._longest_token: int | None = None  # in characters
        # One thread: Hugging Face tokenizers change state of their own while they encode.
        self._encoder = ThreadPoolExecutor(1, thread_name_prefix="tokenize")

    def close(self) -> None:
        self._encoder.shutdown(wait=False, cancel_futures=True)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    async def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """The prompt of a conversation, by the model's own chat template."""
        return await self._in_thread(self._render, messages, add_generation_prompt)  # type: ignore[no-any-return]

    async def encode(self, prompt: str | list[int], *, add_special_tokens: bool = True) -> list[int]:
        return await self._in_thread(self._encode, prompt, add_special_tokens)  # type: ignore[no-any-return]

    async def decode(self, tokens: list[int], param: str) -> str:
        refuse_outside(tokens, param, len(self.tokenizer))
        return await self._in_thread(self.tokenizer.decode, tokens)  # type: ignore[no-any-return]

    def text(self, prompt: str | list[int]) -> str:
        return prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> list[int]:
        plain = [{"role": _template_role(m.role), "content": m.content or ""} for m in messages]
        try:
            text = self.tokenizer.apply_chat_template(
                plain, tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except Exception as error:  # a template may raise anything, on purpose: roles in a wrong order, say
            message = f"The model's chat template refuses these messages: {error}"
            raise ApiError(400, message, param="messages", code="invalid_value") from error
        self._refuse_hopeless(text, "messages")
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _encode(self, prompt: str | list[int], add_special_tokens: bool) -> list[int]:
        if isinstance(prompt, str):
            self._refuse_hopeless(prompt, "prompt")
            return self.tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
        refuse_outside(prompt, "prompt", len(self.tokenizer))
        return prompt

    def _refuse_hopeless(self, text: str, param: str) -> None:
        """Refuse a text that can't fit whatever its tokens are, before seconds are spent on them."""
        if self._longest_token is None:
            self._longest_token = max(map(len, self.tokenizer.get_vocab()))
        limit = self._engine.context_length
        at_least = len(text) // self._longest_token
        if at_least > limit:
            message = (
                f"This model's maximum context length is {limit} tokens, but '{param}' has over {at_least} tokens."
            )
            raise ApiError(400, message, param=param, code="context_length_exceeded")

    async def _in_thread(self, function: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._encoder, function, *args)


def refuse_outside(tokens: Iterable[int], param: str, vocabulary: int) -> None:
    """Return if every token id is in the model's vocabulary; else an `ApiError`, 400."""
    if outside := [token for token in tokens if not 0 <= token < vocabulary]:
        message = f"Token id {outside[0]} in '{param}' is outside this model's vocabulary of {vocabulary}."
        raise ApiError(400, message, param=param, code="invalid_value")


def _template_role(role: str) -> str:
    """`developer` is OpenAI's newer name of `system`; templates know only the latter."""
    return "system" if role == "developer" else role
