"""Makes a Hugging Face folder of the shape of Llama 3.2 1B or Llama 3.1 8B with random weights, and texts to tune it on.

usage: python3 benches/language_folder.py FOLDER [--size 1b|8b|tiny] [--layers N] [--packed]

Needs nothing but Python. Weights are one block of normal numbers (0.02) in bf16 again and again, so that 2.5 GB take seconds. The tokenizer
knows the 256 bytes; the vocabulary is the model's, so the output layer is as wide as it should be. FOLDER/texts.jsonl has 96 rows of
2048 tokens: one text a row, or with --packed some twelve texts a row.
"""

import argparse
import array
import json
import pathlib
import random
import struct

SIZES = {  # width, layers, heads, heads of keys, inner, tied, vocabulary
    "1b": (2048, 16, 32, 8, 8192, True, 128256),
    "8b": (4096, 32, 32, 8, 14336, False, 128256),
    "tiny": (64, 2, 4, 2, 128, True, 512),
}
ROW = 2048


def bf16(x):
    return struct.unpack("<I", struct.pack("<f", x))[0] >> 16


def tensors(width, layers, heads, kv, inner, tied, words):
    head = width // heads
    yield "model.embed_tokens.weight", [words, width]
    for i in range(layers):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", [width]
        yield at + "post_attention_layernorm.weight", [width]
        for name, shape in [("q", [width, width]), ("k", [kv * head, width]), ("v", [kv * head, width]), ("o", [width, width])]:
            yield f"{at}self_attn.{name}_proj.weight", shape
        for name, shape in [("gate", [inner, width]), ("up", [inner, width]), ("down", [width, inner])]:
            yield f"{at}mlp.{name}_proj.weight", shape
    yield "model.norm.weight", [width]
    if not tied:
        yield "lm_head.weight", [words, width]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--size", choices=SIZES, default="1b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--packed", action="store_true")
    args = parser.parse_args()
    width, layers, heads, kv, inner, tied, words = SIZES[args.size]
    layers = args.layers or layers
    folder = args.folder
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "llama", "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv, "head_dim": width // heads, "intermediate_size": inner, "vocab_size": words,
        "tie_word_embeddings": tied, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, "attention_bias": False, "mlp_bias": False,
        "attention_dropout": 0.0, "eos_token_id": 256, "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))

    rng = random.Random(0)
    block = array.array("H", [bf16(rng.gauss(0, 0.02)) for _ in range(1 << 16)]).tobytes()
    ones = array.array("H", [bf16(1.0)] * (1 << 16)).tobytes()
    header, at = {}, 0
    for name, shape in tensors(width, layers, heads, kv, inner, tied, words):
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in header.values():
            start, end = tensor["data_offsets"]
            left, what = end - start, block if len(tensor["shape"]) > 1 else ones
            while left:
                left -= file.write(what[: min(left, len(what))])

    # The bytes as GPT-2 writes them: those that print as themselves, the others from 256 on.
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    letters = {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}
    vocab = {letters[b]: b for b in range(256)}
    end = {"id": 256, "content": "<end>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
        "pre_tokenizer": byte, "post_processor": None, "decoder": byte,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    with open(folder / "texts.jsonl", "w") as file:
        for _ in range(96):
            left = ROW
            while left > 0:
                # A text has a token more than it has pairs: its end.
                n = min(left, rng.randint(60, 280) if args.packed else ROW)
                print(json.dumps({"text": "".join(rng.choices("abcdefghij klmnop", k=n))}), file=file)
                left -= n


if __name__ == "__main__":
    main()
