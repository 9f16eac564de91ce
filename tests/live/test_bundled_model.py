"""The model of the default config, as it is fetched from the package index and converted."""

import json

import transformers

from deployments import bundled
from deployments.models import resolve


def test_the_bundled_model_is_an_ordinary_checkpoint() -> None:
    folder = resolve(bundled.NAME)
    config = json.loads((folder / "config.json").read_text())
    assert "_model_name_or_path" not in config and "quantization_config" not in config
    assert (config["dtype"], config["bos_token_id"], config["eos_token_id"]) == ("bfloat16", 1, 2)
    assert transformers.AutoConfig.from_pretrained(folder).max_position_embeddings == 8192
    assert (folder / "model.safetensors").stat().st_size > 250e6
    assert {path.suffix for path in folder.iterdir()} == {".json", ".jinja", ".safetensors"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.model_max_length, tokenizer.eos_token, tokenizer.pad_token_id) == (8192, "<|im_end|>", 2)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.decode(tokenizer("Grüße, 2024!")["input_ids"]) == "Grüße, 2024!"
