"""How folders of transformers, with settings drawn at random, are gone on from and tuned here, against transformers.

    python python/coverage_hub/run.py [--plimsoll target/release/plimsoll] [--families llama,gpt2] [--count 20] [--first 0] [--keep FOLDER]

For each family so many configs are drawn: heads that share keys, windows, scaled rotary positions, caps, biases, activations, tied words, types of
stored weights. Each becomes a folder with random weights. `plimsoll generate` must take the tokens that transformers takes, greedily; `plimsoll tune`
must have the losses of five steps of AdamW; or the config must be refused by the name of what is not known. Prints a line a config, and ends
with the number of those that were none of it. A config is drawn by its family and number alone, so that one can be looked at again (--first, --count 1).
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

ROOT = Path(__file__).resolve().parent.parent.parent
WORDS = ROOT / "crates" / "hub" / "tests" / "fixtures" / "llama"
PROMPT = "So it goes on, and who reads it wonders where it ends"
TEXT = "A line that is learnt from, five times, each time a little better than before; it is longer than the window."
TOKENS, STEPS, RATE = 24, 5, 1e-3
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "gpt2")


def rope(draw: random.Random, head: int, family: str) -> dict[str, Any] | None:
    """How positions turn: as it is usual, or stretched in one of the known ways."""
    kinds = ["none", "default", "longrope"] if family == "phi3" else ["none", "default", "linear", "llama3", "yarn", "dynamic"]
    kind, theta = draw.choice(kinds), draw.choice([10_000.0, 500_000.0, 100.0])
    told: dict[str, Any] = {"rope_type": kind, "rope_theta": theta}
    if kind == "none":
        return None
    if kind in ("linear", "dynamic"):
        told["factor"] = draw.choice([2.0, 4.0, 1.5])
    if kind == "llama3":
        told |= dict(factor=draw.choice([4.0, 8.0]), low_freq_factor=1.0, high_freq_factor=draw.choice([2.0, 4.0]), original_max_position_embeddings=32)
    if kind == "yarn":
        told |= dict(factor=draw.choice([2.0, 4.0]), original_max_position_embeddings=32)
        more = dict(attention_factor=1.3, beta_fast=16.0, beta_slow=2.0, mscale=0.8, mscale_all_dim=0.6, truncate=False)
        told |= {name: more[name] for name in draw.sample(sorted(more), draw.randint(0, 3))}
    if kind == "longrope":
        half = head // 2
        told |= dict(short_factor=[1.0 + 0.1 * i for i in range(half)], long_factor=[2.0 + 0.2 * i for i in range(half)], original_max_position_embeddings=32)
    if family == "phi3" and kind != "longrope" and draw.random() < 0.5:
        told["partial_rotary_factor"] = 0.5
    return told


def config(family: str, number: int) -> tuple[Any, str]:
    """A config, and the type that its weights are stored in."""
    draw = random.Random(f"{family} {number}")
    heads = draw.choice([2, 4])
    layers, width = draw.choice([1, 2, 3]), 32
    tokens = dict(bos_token_id=256, eos_token_id=257, pad_token_id=258)
    dtype = draw.choice(["float32", "bfloat16", "float16"])
    if family == "gpt2":
        told = dict(
            n_positions=128, n_embd=width, n_layer=layers, n_head=heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, n_inner=draw.choice([None, 48]),
            activation_function=draw.choice(["gelu_new", "gelu", "relu", "silu", "gelu_pytorch_tanh"]), scale_attn_weights=draw.random() < 0.7,
            scale_attn_by_inverse_layer_idx=draw.random() < 0.4, tie_word_embeddings=draw.random() < 0.7, layer_norm_epsilon=draw.choice([1e-5, 1e-3]),
        )
        return transformers.GPT2Config(vocab_size=288, **told, **tokens), dtype
    head = draw.choice([None, 8, 12]) if family != "phi3" else None
    wide = head or width // heads
    told = dict(
        vocab_size=288, hidden_size=width, intermediate_size=draw.choice([24, 56]), num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=draw.choice([n for n in (1, 2, 4) if n <= heads]), max_position_embeddings=draw.choice([128, 256]), rms_norm_eps=draw.choice([1e-6, 1e-3]),
        tie_word_embeddings=draw.random() < 0.4, **tokens,
    )
    if head and family not in ("qwen2", "phi3"):
        told["head_dim"] = head
    elif family in ("qwen3", "gemma2", "gemma3"):
        told["head_dim"] = wide = 8
    if family.startswith("gemma"):
        told["hidden_activation"] = draw.choice(["gelu_pytorch_tanh", "gelu", "silu"])
    else:
        told["hidden_act"] = draw.choice(["silu", "silu", "gelu", "gelu_pytorch_tanh", "relu"])
    turned = rope(draw, wide, family)
    if turned and family != "gemma3":
        told["rope_parameters"] = turned
    if family in ("llama", "qwen3", "gemma2", "gemma3"):
        told["attention_bias"] = draw.random() < 0.4
    if family == "llama":
        told["mlp_bias"] = draw.random() < 0.4
    slides = [draw.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]
    if family in ("mistral", "phi3"):
        told["sliding_window"] = draw.choice([None, 9])
    if family in ("qwen2", "qwen3"):
        told |= dict(use_sliding_window=draw.random() < 0.6, sliding_window=9, max_window_layers=draw.choice([0, 1, 28]))
        if told["use_sliding_window"] and draw.random() < 0.5:
            told["layer_types"] = slides
    if family in ("gemma2", "gemma3"):
        told |= dict(sliding_window=9, query_pre_attn_scalar=draw.choice([8, 20]))
        if draw.random() < 0.6:
            told["layer_types"] = slides
        caps = dict(final_logit_softcapping=draw.choice([None, 4.0]))
        if family == "gemma2":
            caps["attn_logit_softcapping"] = draw.choice([None, 2.0, 50.0])
        if draw.random() < 0.7:
            told |= caps
    if family == "gemma3" and draw.random() < 0.6:
        full = dict(rope_type="linear", rope_theta=1e6, factor=4.0) if draw.random() < 0.5 else dict(rope_type="default", rope_theta=5e5)
        told["rope_parameters"] = dict(full_attention=full, sliding_attention=dict(rope_type="default", rope_theta=draw.choice([1e4, 500.0])))
    classes = dict(
        llama=transformers.LlamaConfig, mistral=transformers.MistralConfig, qwen2=transformers.Qwen2Config, qwen3=transformers.Qwen3Config,
        gemma2=transformers.Gemma2Config, gemma3=transformers.Gemma3TextConfig, phi3=transformers.Phi3Config,
    )
    if family == "phi3":
        told |= dict(resid_pdrop=0.0, embd_pdrop=0.0, attention_dropout=0.0)
    return classes[family](**told), dtype


def folder(config: Any, dtype: str, at: Path, seed: int) -> torch.nn.Module:
    """Random weights of a config as a folder; and the same model in f32."""
    torch.manual_seed(seed)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            is_norm = "norm" in name or ".ln_" in name
            p.copy_(((p if is_norm else 0 * p) + torch.randn_like(p) * (0.1 if is_norm else 0.2)).to(getattr(torch, dtype)).float())
    stored = transformers.AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype))
    stored.load_state_dict({name: value.to(getattr(torch, dtype)) if value.is_floating_point() else value for name, value in model.state_dict().items()})
    stored.save_pretrained(at)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(WORDS / name, at / name)
    return model


def generated(plimsoll: str, at: Path) -> list[int]:
    """The tokens that are taken here."""
    ran = subprocess.run([plimsoll, "generate", str(at), "--prompt", PROMPT, "--tokens", str(TOKENS), "--json"], capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(" ".join(ran.stderr.split()))
    return json.loads(ran.stdout.splitlines()[-1])["tokens"]


def went_on(model: torch.nn.Module, prompt: list[int], taken: list[int]) -> str | None:
    """Where another token was taken than transformers would take, if it was: judged token by token over one pass, so that a near tie is none."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + taken])).logits[0].double()
    for i, token in enumerate(taken):
        row = logits[len(prompt) + i - 1]
        if row.max() - row[token] > 1e-3 * row.abs().max():
            return f"token {i} is {token} ({row[token]:.4f}) and not {int(row.argmax())} ({row.max():.4f})"
    return None


def tuned(plimsoll: str, at: Path, work: Path) -> tuple[list[float], dict[str, np.ndarray]]:
    """The losses of steps here, and the rows that were learnt from."""
    (work / "text.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
    told = ["--sequence", "96", "--batch", "1", "--epochs", str(STEPS), "--optimizer", "adamw", "--lr", str(RATE), "--precision", "f32"]
    ran = subprocess.run([plimsoll, "tune", str(at), "--data", str(work / "text.jsonl"), "--out", str(work / "run"), *told], capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(" ".join(ran.stderr.split()))
    rows = {name: np.load(work / "run" / "rows" / f"{name}.npy") for name in ("tokens", "next", "positions", "weights")}
    lines = (work / "run" / "steps.csv").read_text().splitlines()[1:]
    return [float(line.split(",")[2]) for line in lines], rows


def learnt(model: torch.nn.Module, rows: dict[str, np.ndarray]) -> list[float]:
    """The losses of the same steps in PyTorch."""
    ids, after = (torch.from_numpy(rows[name].astype(np.int64)) for name in ("tokens", "next"))
    weights = torch.from_numpy(rows["weights"])
    decayed = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    losses = []
    model.train()
    for _ in range(STEPS):
        logits = model(ids).logits
        each = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), after.reshape(-1), reduction="none")
        loss = (each * weights.reshape(-1)).sum() / (weights > 0).sum()
        decayed.zero_grad()
        loss.backward()
        decayed.step()
        losses.append(loss.item())
    return losses


def verdict(family: str, number: int, plimsoll: str, keep: Path | None) -> tuple[bool, str]:
    """Whether a config is as in transformers, or refused by name; and what is to be said of it."""
    with tempfile.TemporaryDirectory() as temporary:
        work = keep / f"{family}-{number}" if keep else Path(temporary)
        shutil.rmtree(work, ignore_errors=True)
        at = work / "model"
        at.mkdir(parents=True)
        try:
            made, dtype = config(family, number)
            model = folder(made, dtype, at, number)
            prompt = transformers.PreTrainedTokenizerFast(tokenizer_file=str(at / "tokenizer.json")).encode(PROMPT)
            with torch.no_grad():
                if not model(torch.tensor([prompt])).logits.isfinite().all():
                    return True, "not tried: transformers gives no numbers"
        except Exception as error:
            return True, f"not tried: transformers itself says {type(error).__name__}: {error}".splitlines()[0][:160]
        try:
            taken = generated(plimsoll, at)
            apart = min((went_on(model, before, taken) or "" for before in (prompt, [256, *prompt])), key=len)
            if apart:
                return False, f"APART in what it takes: {apart}"
            losses, rows = tuned(plimsoll, at, work)
            theirs = learnt(model, rows)
            off = max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(losses, theirs, strict=True))
            return off < 2e-4, f"{'equal' if off < 2e-4 else 'APART in losses ' + str(losses) + ' ' + str(theirs)}, losses {off:.0e} off"
        except RuntimeError as error:
            # A refusal names a setting of the config, and is no error of the engine's.
            told = json.loads((at / "config.json").read_text())
            names = set(re.findall(r"\w+", json.dumps(told)))
            words = set(re.findall(r"\w+", str(error)))
            is_named = bool(words & {name for name in names if "_" in name} or words & {"yarn", "dynamic", "longrope"}) and "internal" not in str(error)
            return is_named, f"refused: {error}"


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--plimsoll", default=str(ROOT / "target" / "release" / "plimsoll"))
    words.add_argument("--families", default=",".join(FAMILIES))
    words.add_argument("--count", type=int, default=20)
    words.add_argument("--first", type=int, default=0)
    words.add_argument("--keep", type=Path, help="a folder in which all folders and runs stay")
    given = words.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    wrong, all_of_them = 0, 0
    for family in given.families.split(","):
        for number in range(given.first, given.first + given.count):
            is_right, said = verdict(family, number, given.plimsoll, given.keep)
            wrong, all_of_them = wrong + (not is_right), all_of_them + 1
            print(f"{'' if is_right else 'WRONG '}{family} {number}: {said}", flush=True)
    print(f"{all_of_them} configs, {wrong} wrong")
    sys.exit(min(wrong, 100))


if __name__ == "__main__":
    main()
