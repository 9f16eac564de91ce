from collections.abc import Iterable
from typing import Any

import pytest

from deployments.openai_layer.text import Tokenizer

END, START = "<|end|>", "<|start|>"
# As most models': one line a role, and a role that the model doesn't know is refused.
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role not in ('system', 'user', 'assistant') %}{{ raise_exception('no role ' + message.role) }}"
    "{% endif %}{{ '<|start|>' + message.role + '\n' + message.content + '<|end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)


def wrapped(backend: Any) -> Tokenizer:
    from transformers import PreTrainedTokenizerFast

    tokenizer: Tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, chat_template=TEMPLATE)
    return tokenizer


def byte_level_bpe(corpus: Iterable[str]) -> Any:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[END, START],  # END's id is 0
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(corpus, trainer)
    return backend


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """Byte-level BPE over a handful of English words: all other characters are tokens of one byte each."""
    return wrapped(byte_level_bpe(["the quick brown fox jumps over the lazy dog, hello world, one two three"] * 4))


@pytest.fixture
def tokenizer_with_start() -> Tokenizer:
    """One that begins whatever it encodes with START."""
    from tokenizers.processors import TemplateProcessing

    backend = byte_level_bpe(["hello"])
    backend.post_processor = TemplateProcessing(single=f"{START} $A", special_tokens=[(START, 1)])
    return wrapped(backend)


@pytest.fixture
def byte_fallback_tokenizer() -> Tokenizer:
    """A few words, and `<0x..>` tokens for the bytes of everything else, as SentencePiece writes them."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models

    vocabulary = {END: 0, START: 1, "hello": 2, "h": 3}
    vocabulary |= {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)}
    backend = Backend(models.BPE(vocabulary, [], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return wrapped(backend)
