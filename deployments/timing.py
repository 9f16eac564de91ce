"""How long a step of an engine with continuous batching takes, and how much it holds. Pure: it knows no clock."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimingModel:
    """An engine's speed and size. A step takes
    step_s + prefill tokens / prefill_tokens_per_s + decoding sequences * sequence_s + their tokens * cached_token_s.
    """

    prefill_tokens_per_s: float = 8000  # prompt tokens that the prefix cache hasn't
    step_s: float = 0.02  # of every step: reading the weights, launching kernels
    sequence_s: float = 0.0002  # each sequence that decodes
    cached_token_s: float = 0.0  # each token of KV cache that decoding reads
    kv_blocks: int = 4096
    block_size: int = 16  # tokens
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048  # of a step: prefill and decode together

    def __post_init__(self) -> None:
        if min(self.kv_blocks, self.block_size, self.max_num_seqs) < 1:
            raise ValueError("kv_blocks, block_size and max_num_seqs must be at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError("max_num_batched_tokens must be at least max_num_seqs: a step gives each sequence a token")
        if self.prefill_tokens_per_s <= 0 or min(self.step_s, self.sequence_s, self.cached_token_s) < 0:
            raise ValueError(
                "prefill_tokens_per_s must be more than 0; step_s, sequence_s and cached_token_s at least 0"
            )

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.kv_blocks * self.block_size

    def blocks(self, tokens: int) -> int:
        """KV blocks for so many tokens."""
        return -(-tokens // self.block_size)

    def duration_s(self, prefill_tokens: int, sequences: int, cached_tokens: int) -> float:
        """Seconds of a step that prefills so many tokens and decodes so many sequences with `cached_tokens`."""
        decode_s = sequences * self.sequence_s + cached_tokens * self.cached_token_s
        return self.step_s + prefill_tokens / self.prefill_tokens_per_s + decode_s
