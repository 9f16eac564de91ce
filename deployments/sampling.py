"""Sampling per request inside transformers' continuous batching, whose own sampling is one setting for all."""

from typing import Any

from deployments.openai_layer.tokens import Sampling, Token

GREEDY_BELOW = 1e-5  # temperatures below are as good as 0, and dividing by them overflows


class TokenChooser:
    """Chooses one request's tokens from rows of logits, and remembers their log probabilities.

    A row is a float32 tensor of shape [vocabulary]. Used from the batching thread; `token` from the event loop, for
    tokens that the batching thread has delivered.
    """

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._generator: Any = None
        self._reports: list[tuple[float, tuple[tuple[int, float], ...]]] = []

    @property
    def leaves_logits_alone(self) -> bool:
        return self._greedy and self._sampling.logprobs is None

    @property
    def _greedy(self) -> bool:
        return self._sampling.temperature < GREEDY_BELOW

    def choose(self, logits: Any) -> int:
        """The next token's id."""
        chosen = int(logits.argmax()) if self._greedy else self._sample(logits)
        if self._sampling.logprobs is not None:
            self._report(logits, chosen, self._sampling.logprobs)
        return chosen

    def token(self, index: int, token_id: int) -> Token:
        """The request's token number `index`, as the layer wants it."""
        if self._sampling.logprobs is None:
            return Token(token_id)
        logprob, top = self._reports[index]
        return Token(token_id, logprob, top)

    def _sample(self, logits: Any) -> int:
        """Nucleus sampling by exponential races: argmax(p / Exp(1)) is distributed as p (the Gumbel-max trick)."""
        import torch

        probabilities = (logits / self._sampling.temperature).softmax(-1)
        if self._sampling.top_p < 1:
            probabilities = _nucleus(probabilities, self._sampling.top_p)
        noise = torch.empty_like(probabilities).exponential_(generator=self._random(logits.device))
        return int((probabilities / noise).argmax())

    def _random(self, device: Any) -> Any:
        import torch

        if self._generator is None:
            self._generator = torch.Generator(device=device)
            if self._sampling.seed is None:
                self._generator.seed()
            else:
                self._generator.manual_seed(self._sampling.seed)
        return self._generator

    def _report(self, logits: Any, chosen: int, count: int) -> None:
        """OpenAI's logprobs are of the model's own distribution, before temperature and top_p."""
        logprobs = logits.log_softmax(-1)
        values, ids = logprobs.topk(count)
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
        self._reports.append((float(logprobs[chosen]), top))


def _nucleus(probabilities: Any, top_p: float) -> Any:
    """Zero all but the smallest set of likeliest tokens whose probabilities reach `top_p`."""
    values, ids = probabilities.sort(descending=True)
    outside = values.cumsum(-1) - values >= top_p
    return probabilities.scatter(-1, ids[outside], 0.0)


def per_request_sampling() -> Any:
    """A logits-processor list for a continuous-batching manager: each request brings its own `chooser`."""
    from transformers import LogitsProcessorList
    from transformers.generation.continuous_batching.cb_logits_processors import (
        ContinuousBatchingLogitsProcessor,
        ContinuousBatchingLogitsProcessorList,
    )

    class PerRequestSampling(ContinuousBatchingLogitsProcessor):  # type: ignore[misc,unused-ignore]
        supported_kwargs = {"chooser": TokenChooser}
        ignored_kwargs = ()

        def __init__(self) -> None:
            self._choosers: list[TokenChooser] = []

        def fill_defaults(self, int32_tensor: Any) -> None:
            int32_tensor.zero_()

        def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> Any:
            import torch

            # The first rows of the next __call__ are these requests, in this order; the rest belong to prompts that
            # are only partly read, and nobody looks at them.
            self._choosers = [request.state.logit_processor_kwargs["chooser"] for request in requests_with_new_token]
            return torch.zeros(len(self._choosers), dtype=torch.int32)

        def __call__(self, scores: Any, tensor_arg: Any) -> Any:
            if scores.size(0) < len(self._choosers):
                raise RuntimeError(f"{scores.size(0)} rows of logits for {len(self._choosers)} requests")
            for row, chooser in zip(scores, self._choosers, strict=False):
                if not chooser.leaves_logits_alone:
                    chosen = chooser.choose(row)
                    row.fill_(float("-inf"))
                    row[chosen] = 0.0
            return scores

    processors = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([PerRequestSampling()]))
    processors.tensors_required = 1
    return processors
