"""Adapters that fit, and each way in which one doesn't; files are written byte by byte."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from deployments import safetensors_header
from deployments.errors import ApiError
from deployments.lora import UNSUPPORTED, check_adapter, inside
from tests.lora_files import Shapes, adapter_shapes, write_adapter, write_safetensors

HIDDEN = 12
HEADS = {"q_proj": 12, "v_proj": 4}
FITTING = adapter_shapes(2, HIDDEN, HEADS, 8)
FIRST = "base_model.model.model.layers.0.self_attn.q_proj"
BASE: Shapes = {
    "model.embed_tokens.weight": (50, HIDDEN),
    "model.norm.weight": (HIDDEN,),
    **{
        f"model.layers.{layer}.self_attn.{name}.weight": (width, 12)
        for layer in (0, 1)
        for name, width in HEADS.items()
    },
}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", BASE)
    return folder


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "adapter", FITTING)


def refusal(path: Path, base: Path, max_rank: int | None = 16) -> str:
    with pytest.raises(ApiError) as caught:
        check_adapter(path, base, max_rank, "mine")
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, "lora_path", "invalid_adapter")
    assert str(path.parent) not in caught.value.message
    return caught.value.message


def rewritten(path: Path, **config: Any) -> Path:
    file = path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))
    return path


def with_tensors(path: Path, **changed: tuple[int, ...] | None) -> Path:
    """The fitting adapter with other shapes of the first module's A or B, or without one."""
    names = {f"{FIRST}.lora_{kind}.weight": shape for kind, shape in changed.items()}
    shapes = {name: shape for name, shape in {**FITTING, **names}.items() if shape is not None}
    write_safetensors(path / "adapter_model.safetensors", shapes)
    return path


# Those that fit


@pytest.mark.parametrize("max_rank", [8, 16, None])
def test_one_that_fits(adapter: Path, base: Path, max_rank: int | None) -> None:
    check_adapter(adapter, base, max_rank, "mine")


def test_a_sharded_base(adapter: Path, base: Path) -> None:
    (base / "model.safetensors").unlink()
    names = sorted(BASE)
    write_safetensors(base / "1.safetensors", {name: BASE[name] for name in names[:3]})
    write_safetensors(base / "2.safetensors", {name: BASE[name] for name in names[3:]})
    check_adapter(adapter, base, 16, "mine")
    index = {"weight_map": {name: "1.safetensors" if name in names[:3] else "2.safetensors" for name in names}}
    (base / "model.safetensors.index.json").write_text(json.dumps(index))
    check_adapter(adapter, base, 16, "mine")
    index["weight_map"] = dict.fromkeys(names[:3], "1.safetensors")
    (base / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "doesn't have" in refusal(adapter, base)


def test_an_index_leads_nowhere_else(adapter: Path, base: Path) -> None:
    (base / "model.safetensors").rename(base.parent / "elsewhere.safetensors")
    (base / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../elsewhere.safetensors"}}')
    assert "names a file outside its folder: ../elsewhere.safetensors" in refusal(adapter, base)


@pytest.mark.parametrize("prefix", ["", "language_model.model."])
def test_a_base_whose_modules_have_other_prefixes(adapter: Path, base: Path, prefix: str) -> None:
    write_safetensors(
        base / "model.safetensors", {f"{prefix}{name.removeprefix('model.')}": BASE[name] for name in BASE}
    )
    check_adapter(adapter, base, 16, "mine")


def test_embeddings_and_a_tied_head(adapter: Path, base: Path) -> None:
    shapes = {
        "base_model.model.model.embed_tokens.lora_embedding_A": (8, 50),
        "base_model.model.model.embed_tokens.lora_embedding_B": (HIDDEN, 8),
        "base_model.model.model.embed_tokens.base_layer.weight": (50, HIDDEN),
        "base_model.model.lm_head.lora_A.weight": (8, HIDDEN),
        "base_model.model.lm_head.lora_B.weight": (50, 8),
    }
    write_safetensors(adapter / "adapter_model.safetensors", shapes)
    check_adapter(adapter, base, 16, "mine")
    shapes["base_model.model.lm_head.lora_B.weight"] = (60, 8)
    write_safetensors(adapter / "adapter_model.safetensors", shapes)
    assert "lm_head.lora_B.weight' is [60, 8], but the model's 'model.embed_tokens.weight'" in refusal(adapter, base)


def test_a_base_that_keeps_its_weights_the_other_way_round(adapter: Path, base: Path) -> None:
    write_safetensors(base / "model.safetensors", {name: shape[::-1] for name, shape in BASE.items()})
    check_adapter(rewritten(adapter, fan_in_fan_out=True), base, 16, "mine")
    assert "another base model" in refusal(rewritten(adapter, fan_in_fan_out=False), base)


@pytest.mark.parametrize(("suffix", "dtype"), [(".qweight", "I32"), (".weight_packed", "I32"), (".weight", "U8")])
def test_a_quantized_base_is_judged_by_its_modules(adapter: Path, base: Path, suffix: str, dtype: str) -> None:
    packed = {name.replace(".weight", suffix): (3, 3) for name in BASE}
    write_safetensors(base / "model.safetensors", packed, dtype=dtype)
    check_adapter(adapter, base, 16, "mine")
    fewer = {name: shape for name, shape in packed.items() if ".1." not in name}
    write_safetensors(base / "model.safetensors", fewer, dtype=dtype)
    assert "which the model doesn't have" in refusal(adapter, base)


def test_ranks_of_their_own(adapter: Path, base: Path) -> None:
    with_tensors(adapter, A=(4, HIDDEN), B=(12, 4))
    assert f"'{FIRST}.lora_A.weight' is [4, 12], of a rank that adapter_config.json doesn't name." in refusal(
        adapter, base
    )
    check_adapter(rewritten(adapter, rank_pattern={"q_proj": 4}), base, 16, "mine")


# Files


def test_no_folder(tmp_path: Path, base: Path) -> None:
    assert refusal(tmp_path / "none", base) == "There is no folder 'mine'."
    (tmp_path / "file").write_text("")
    assert refusal(tmp_path / "file", base) == "There is no folder 'mine'."
    assert refusal(tmp_path / ("x" * 300), base) == "There is no folder 'mine'."


def test_no_config(adapter: Path, base: Path) -> None:
    (adapter / "adapter_config.json").unlink()
    assert refusal(adapter, base) == "The folder 'mine' has no adapter_config.json, so it is no LoRA adapter."


def test_no_weights(adapter: Path, base: Path) -> None:
    (adapter / "adapter_model.safetensors").unlink()
    assert refusal(adapter, base) == "The folder 'mine' has no adapter_model.safetensors."


@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.pt"])
def test_a_pickle_instead(adapter: Path, base: Path, name: str) -> None:
    (adapter / "adapter_model.safetensors").rename(adapter / name)
    assert refusal(adapter, base) == (
        f"The folder 'mine' has no adapter_model.safetensors. {name} is a pickle, which can run code: "
        "convert it to safetensors."
    )


def test_a_pipe_is_not_waited_for(adapter: Path, base: Path) -> None:
    (adapter / "adapter_model.safetensors").unlink()
    os.mkfifo(adapter / "adapter_model.safetensors")
    assert "has no adapter_model.safetensors" in refusal(adapter, base)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"r": 8}', b'{"peft_type": 1}'])
def test_a_config_that_cannot_be_read(adapter: Path, base: Path, text: bytes) -> None:
    (adapter / "adapter_config.json").write_bytes(text)
    assert refusal(adapter, base).startswith("The adapter's file 'mine/adapter_config.json' can't be read: ")


def test_a_config_that_is_too_large(adapter: Path, base: Path) -> None:
    assert "larger than 1048576 bytes" in refusal(rewritten(adapter, more="x" * 2**20), base)


HEADER = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "its first eight bytes give no length of a header"),
        (b"\x01\x00", "its first eight bytes give no length of a header"),
        (struct.pack("<Q", 0) + b"{}", "its first eight bytes give no length of a header"),
        (struct.pack("<Q", 2**63) + b"{}", "its first eight bytes give no length of a header"),
        (struct.pack("<Q", 3) + b"{}", "its first eight bytes give no length of a header"),
        (struct.pack("<Q", 2) + b"[]", "its header is no JSON object"),
        (struct.pack("<Q", 2) + b"{x", "its header is not JSON"),
        (struct.pack("<Q", 100_000) + b"[" * 100_000, "its header is not JSON"),
        (struct.pack("<Q", 9) + b'{"a": {}}', "its header doesn't describe tensors"),
        (struct.pack("<Q", len(HEADER)) + HEADER + b"\0\0\0", "it is cut short"),
    ],
)
def test_weights_that_cannot_be_read(adapter: Path, base: Path, content: bytes, why: str) -> None:
    (adapter / "adapter_model.safetensors").write_bytes(content)
    message = refusal(adapter, base)
    assert message.startswith("The adapter's file 'mine/adapter_model.safetensors' can't be read: ")
    assert why in message


def test_a_header_is_read_only_so_far(adapter: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_header, "MAX_HEADER_BYTES", 10)
    assert "no length of a header" in refusal(adapter, base)


def test_a_base_without_safetensors(adapter: Path, base: Path) -> None:
    (base / "model.safetensors").unlink()
    assert refusal(adapter, base) == "The pool's model can't be compared with the adapter: it holds no safetensors."


# What the config says


def test_another_kind_of_adapter(adapter: Path, base: Path) -> None:
    message = "The adapter 'mine' is of type 'PREFIX_TUNING'; only LORA is served."
    assert refusal(rewritten(adapter, peft_type="PREFIX_TUNING"), base) == message


@pytest.mark.parametrize("config", [{"r": 32}, {"r": 8, "rank_pattern": {"q_proj": 32}}])
def test_a_rank_that_is_too_high(adapter: Path, base: Path, config: dict[str, Any]) -> None:
    message = "The adapter 'mine' has rank 32; this pool's engine takes at most 16."
    assert refusal(rewritten(adapter, **config), base) == message


@pytest.mark.parametrize("config", [{"r": 0}, {"r": -1}, {"rank_pattern": {"q_proj": 0}}])
def test_a_rank_that_is_none(adapter: Path, base: Path, config: dict[str, Any]) -> None:
    assert "it must be at least 1" in refusal(rewritten(adapter, **config), base)


@pytest.mark.parametrize("key", UNSUPPORTED)
def test_what_engines_do_not_implement(adapter: Path, base: Path, key: str) -> None:
    value = "all" if key == "bias" else ["lm_head"]
    message = f"The adapter 'mine' uses '{key}' (adapter_config.json), which is not supported."
    assert refusal(rewritten(adapter, **{key: value}), base) == message


def test_what_is_left_out_or_off_is_fine(adapter: Path, base: Path) -> None:
    check_adapter(rewritten(adapter, **dict.fromkeys(UNSUPPORTED)), base, 16, "mine")
    check_adapter(rewritten(adapter, bias="none", use_dora=False, modules_to_save=[]), base, 16, "mine")


# Another base


def test_a_base_of_another_width(tmp_path: Path, base: Path) -> None:
    path = write_adapter(tmp_path / "wide", adapter_shapes(2, 2048, {"q_proj": 2048}, 8))
    assert refusal(path, base) == (
        f"The adapter 'mine' doesn't fit this pool's model: '{FIRST}.lora_A.weight' is [8, 2048], but the model's "
        "'model.layers.0.self_attn.q_proj.weight' is [12, 12], which needs [8, 12]: it was made for another base model."
    )


def test_a_base_with_another_number_of_heads(tmp_path: Path, base: Path) -> None:
    path = write_adapter(tmp_path / "heads", adapter_shapes(2, HIDDEN, {"q_proj": 12, "v_proj": 6}, 8))
    name = FIRST.replace("q_proj", "v_proj")
    assert f"'{name}.lora_B.weight' is [6, 8], but the model's" in refusal(path, base)


def test_a_base_with_more_layers(tmp_path: Path, base: Path) -> None:
    path = write_adapter(tmp_path / "deep", adapter_shapes(3, HIDDEN, HEADS, 8))
    assert (
        "'base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight' is for a module "
        "'model.layers.2.self_attn.q_proj', which the model doesn't have." in refusal(path, base)
    )


def test_only_half_a_pair(adapter: Path, base: Path) -> None:
    message = f"'{FIRST}.lora_A.weight' has no counterpart; A and B come in pairs."
    assert message in refusal(with_tensors(adapter, B=None), base)


@pytest.mark.parametrize(("a", "b"), [((8, 12), (12, 4)), ((8,), (12, 8)), ((8, 12), (12,))])
def test_a_pair_that_does_not_fit_itself(adapter: Path, base: Path, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    assert "their ranks differ" in refusal(with_tensors(adapter, A=a, B=b), base)


@pytest.mark.parametrize("name", [f"{FIRST}.lora_magnitude_vector", f"{FIRST}.lora_B.bias", "score.weight", "x"])
def test_tensors_of_another_kind(adapter: Path, base: Path, name: str) -> None:
    write_safetensors(adapter / "adapter_model.safetensors", {**FITTING, name: (8,)})
    assert f"'{name}' is no LoRA weight." in refusal(adapter, base)


def test_no_tensors(adapter: Path, base: Path) -> None:
    write_safetensors(adapter / "adapter_model.safetensors", {})
    assert "it has no LoRA weights." in refusal(adapter, base)


# Paths


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "allowed"
    (folder / "a" / "b").mkdir(parents=True)
    (tmp_path / "allowed-not").mkdir()
    (folder / "out").symlink_to(tmp_path / "allowed-not")
    (folder / "within").symlink_to(folder / "a")
    return folder


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("a", "a"), ("a/b", "a/b"), ("./a/../a", "a"), ("within", "a"), ("missing", "missing"), ("~", "~")],
)
def test_paths_inside(folder: Path, wanted: str, found: str) -> None:
    assert inside(str(folder), wanted) == folder / found
    if not wanted.startswith("~"):
        assert inside(str(folder), f"{folder}/{wanted}") == folder / found


@pytest.mark.parametrize(
    "wanted",
    [
        ".",
        "",
        "..",
        "../allowed-not",
        "a/../../allowed-not",
        "out",
        "out/x",
        "/",
        "/etc",
        "/nowhere",
        "../nowhere",
        "a\0",
    ],
)
def test_paths_outside(folder: Path, wanted: str) -> None:
    with pytest.raises(ApiError) as caught:
        inside(str(folder), wanted)
    assert (caught.value.status, caught.value.param) == (400, "lora_path")
    assert caught.value.code == "path_not_allowed"
    assert caught.value.message == f"The path '{wanted}' is not inside the folder that adapters may be loaded from."


@pytest.mark.parametrize(
    "wanted",
    [
        *("~root", "~/a", "http://example.com/a", "file:///etc", "s3://bucket/a", "org/name", "%2e%2e", "$HOME"),
        *("x" * 4096, "x/" * 2048, "\udcff", "a\\..\\..", "...", "\N{FULLWIDTH FULL STOP}" * 2),
    ],
)
def test_what_looks_like_another_place_is_a_name_in_the_folder(folder: Path, wanted: str) -> None:
    found = inside(str(folder), wanted)
    assert folder in found.parents and not found.exists() if len(wanted) < 100 else folder in found.parents


def test_a_chain_of_links_is_followed_to_its_end(folder: Path, tmp_path: Path) -> None:
    (folder / "one").symlink_to("two")
    (folder / "two").symlink_to("three")
    (folder / "three").symlink_to(tmp_path)
    (folder / "round").symlink_to("round")
    for wanted in ("one", "one/allowed-not", "a/../one"):
        with pytest.raises(ApiError, match="is not inside the folder"):
            inside(str(folder), wanted)
    assert inside(str(folder), "round") == folder / "round"  # no folder, as the next check says


def test_a_folder_that_is_a_link_itself(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert inside(str(tmp_path / "link"), "a") == folder / "a"
    assert inside(str(tmp_path / "link"), f"{tmp_path}/link/a") == folder / "a"
