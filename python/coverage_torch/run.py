"""How many models of torchvision, timm and transformers train here as they do in PyTorch.

    cargo build -p plimsoll-torch --example compare
    python python/coverage_torch/run.py target/debug/examples/compare [NAME ...] > table.md

Every model has random weights and tiny inputs, dropout off, and is in training mode. It is exported, read by the engine, and compared with
eager PyTorch: the loss (1e-4), the gradient of every parameter (1e-3 of the largest of its elements), and the losses of five steps
of plain descent (1e-3). Gradients and steps are measured against PyTorch in f64; in brackets is how far PyTorch's own f32 is from
it, and where that is much, three times as much is let pass. One row a model; nothing is left out of the table that was tried.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

HERE = Path(__file__).resolve().parent
RATE = 1e-3
STEPS = 5


def _load_export():
    """The package's own export, without the compiled engine that the package needs."""
    path = HERE.parent / "plimsoll" / "torch" / "_export.py"
    spec = importlib.util.spec_from_file_location("plimsoll_torch_export", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.export


class Classified(nn.Module):
    """A classifier with its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x, y):
        out = self.model(x)
        if hasattr(out, "logits"):
            # Inception and GoogLeNet give what their side branches say too.
            return sum(F.cross_entropy(part, y) for part in out if part is not None)
        if isinstance(out, dict):
            out = out["out"].mean((2, 3))
        return F.cross_entropy(out, y)


class Told(nn.Module):
    """A model of transformers, which gives its loss where it is given labels."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens, labels):
        return self.model(input_ids=tokens, labels=labels, use_cache=False).loss


def _vision(make, size=64, classes=10):
    def made():
        return Classified(make()), (torch.randn(2, 3, size, size), torch.tensor([1, 3])), 2

    return made


def _torchvision():
    import torchvision.models as zoo

    for name, size in [
        ("alexnet", 96), ("vgg11_bn", 64), ("resnet18", 64), ("resnet50", 64), ("resnext50_32x4d", 64), ("wide_resnet50_2", 64),
        ("densenet121", 64), ("mobilenet_v2", 64), ("mobilenet_v3_small", 64), ("shufflenet_v2_x1_0", 64), ("squeezenet1_1", 64),
        ("googlenet", 96), ("mnasnet0_5", 64), ("efficientnet_b0", 64), ("regnet_y_400mf", 64), ("convnext_tiny", 64), ("swin_t", 64),
        ("swin_v2_t", 64), ("vit_b_32", 224), ("maxvit_t", 224),
    ]:
        yield f"torchvision/{name}", _vision(lambda name=name: getattr(zoo, name)(num_classes=10), size)


def _timm():
    import timm

    for name, size in [
        ("resnet10t", 64), ("resnet26d", 64), ("seresnet33ts", 64), ("mobilenetv4_conv_small", 64), ("efficientnetv2_rw_t", 64),
        ("convnextv2_atto", 64), ("vit_tiny_patch16_224", 64), ("deit3_small_patch16_224", 64), ("mixer_s32_224", 64),
        ("resmlp_12_224", 64), ("poolformer_s12", 64), ("regnetx_002", 64), ("ghostnet_050", 64), ("hardcorenas_a", 64),
        ("edgenext_xx_small", 64), ("repvgg_a0", 64), ("dla34", 64), ("hrnet_w18_small", 64), ("xcit_nano_12_p16_224", 64),
        ("coat_tiny", 64), ("pit_ti_224", 64), ("visformer_tiny", 64), ("cait_xxs24_224", 64), ("mobilevit_xxs", 64),
        ("levit_128s", 224), ("swin_tiny_patch4_window7_224", 224), ("twins_pcpvt_small", 224), ("nf_resnet26", 64), ("gmlp_s16_224", 64),
        ("crossvit_tiny_240", 240),
    ]:
        fixed = {"img_size": size} if any(part in name for part in ("vit_tiny", "deit3", "mixer", "resmlp", "gmlp", "pit_", "coat", "cait", "xcit")) else {}
        yield f"timm/{name}", _vision(lambda name=name, fixed=fixed: timm.create_model(name, num_classes=10, **fixed), size)


def _transformers():
    import transformers as tr

    small = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    off = {"attention_dropout": 0.0}
    rows = [
        ("gpt2", "GPT2LMHeadModel", "GPT2Config", dict(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)),
        ("llama", "LlamaForCausalLM", "LlamaConfig", dict(small, num_key_value_heads=2)),
        ("mistral", "MistralForCausalLM", "MistralConfig", dict(small, num_key_value_heads=2)),
        ("qwen2", "Qwen2ForCausalLM", "Qwen2Config", dict(small, num_key_value_heads=2)),
        ("gemma", "GemmaForCausalLM", "GemmaConfig", dict(small, num_key_value_heads=2, head_dim=8)),
        ("phi", "PhiForCausalLM", "PhiConfig", dict(small)),
        ("gpt_neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", dict(small)),
        ("opt", "OPTForCausalLM", "OPTConfig", dict(vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64, word_embed_proj_dim=32)),
        ("bert", "BertForMaskedLM", "BertConfig", dict(small)),
        ("roberta", "RobertaForMaskedLM", "RobertaConfig", dict(small)),
        ("distilbert", "DistilBertForMaskedLM", "DistilBertConfig", dict(vocab_size=50, dim=32, n_layers=2, n_heads=4, hidden_dim=64)),
        ("albert", "AlbertForMaskedLM", "AlbertConfig", dict(small, embedding_size=16)),
        ("electra", "ElectraForMaskedLM", "ElectraConfig", dict(small, embedding_size=16)),
    ]
    for name, model, config, settings in rows:
        def made(model=model, config=config, settings=settings):
            own = getattr(tr, config)(**settings)
            module = getattr(tr, model)(own)
            tokens = torch.randint(2, 50, (2, 12))
            return Told(module), (tokens, tokens.clone()), 2

        yield f"transformers/{name}", made


def without_dropout(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for name in ("drop_prob", "attention_dropout", "dropout", "attn_dropout", "activation_dropout", "layerdrop", "p"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)


def eager(module: nn.Module, inputs) -> tuple[float, dict[str, torch.Tensor | None], list[float]]:
    """The loss and gradients of one pass, and the losses of a few steps, of which the module keeps nothing."""
    before = {name: value.clone() for name, value in module.state_dict().items()}
    loss = module(*inputs)
    loss.backward()
    gradients = {name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()}
    module.zero_grad()
    module.load_state_dict(before)
    optimizer, losses = torch.optim.SGD(module.parameters(), RATE), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        value = module(*inputs)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    module.load_state_dict(before)
    module.zero_grad()
    return loss.item(), gradients, losses


def exact(module: nn.Module, inputs) -> tuple[dict[str, torch.Tensor | None], list[float]]:
    """Gradients and losses in f64: what both f32s are measured against."""
    module = copy.deepcopy(module).double()
    _, gradients, losses = eager(module, tuple(x.double() if x.is_floating_point() else x for x in inputs))
    return gradients, losses


def check(compare: str, export, name: str, made, folder: Path) -> dict[str, str]:
    torch.manual_seed(0)
    module, inputs, _ = made()
    module.train()
    without_dropout(module)
    wanted, theirs, their_losses = eager(module, inputs)
    gradients, losses = exact(module, inputs)
    row = {"exports": "", "loads": "", "loss": "", "gradients": "", "steps": ""}
    batch = {0: torch.export.Dim.AUTO}
    try:
        program = export(module, inputs, dynamic_shapes=tuple(batch for _ in inputs))
    except Exception as error:
        return {**row, "exports": str(error).split("\n")[0][:80]}
    row["exports"] = "yes"
    torch.export.save(program, folder / "model.pt2")
    files = []
    for i, x in enumerate(inputs):
        (folder / f"input_{i}").write_bytes(x.contiguous().numpy().tobytes())
        files.append((str(folder / f"input_{i}"), list(x.shape)))
    question = {"model": str(folder / "model.pt2"), "inputs": files, "steps": STEPS, "rate": RATE, "out": str(folder)}
    (folder / "question.json").write_text(json.dumps(question))
    ran = subprocess.run([compare, str(folder / "question.json")], capture_output=True, text=True, timeout=600)
    if ran.returncode != 0:
        return {**row, "loads": ran.stderr.strip()[-160:]}
    row["loads"] = "yes"
    found = json.loads(ran.stdout)
    row["loss"] = "equal" if abs(found["loss"] - wanted) <= 1e-4 * max(1.0, abs(wanted)) else f"{found['loss']:.6g} for {wanted:.6g}"
    worst, where, noise = 0.0, "", 0.0
    for key, expected in gradients.items():
        file = found["gradients"].get(key)
        if key not in found["gradients"]:
            continue  # A tied weight under its second name.
        if (file is None) != (expected is None):
            # A gradient of nothing but zeros says the same as none.
            if expected is not None and expected.abs().max() > 0:
                worst, where = float("inf"), key
            continue
        if expected is None:
            continue
        own = torch.frombuffer(bytearray((folder / file).read_bytes()), dtype=torch.float32).reshape(expected.shape)
        scale = max(expected.abs().max().item(), 1e-4)
        apart = (own - expected).abs().max().item() / scale
        other = (theirs[key] - expected).abs().max().item() / scale
        noise = max(noise, other)
        if not apart <= worst:
            worst, where = apart, key
    # A net that makes much of rounding makes as much of PyTorch's.
    row["gradients"] = f"{worst:.0e} ({noise:.0e})" if worst <= max(1e-3, 3 * noise) else f"{worst:.0e} ({noise:.0e}) at {where}"
    off = lambda found: max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(found, losses))
    apart, noise = off(found["losses"]), off(their_losses)
    row["steps"] = f"{apart:.0e} ({noise:.0e})" + ("" if apart <= max(1e-3, 3 * noise) else " apart")
    return row


def main() -> None:
    warnings.filterwarnings("ignore")
    compare, names = sys.argv[1], sys.argv[2:]
    export = _load_export()
    counts = {"tried": 0, "loads": 0, "loss": 0, "all": 0}
    print("| model | exports | loads | loss | gradients | five steps |\n| --- | --- | --- | --- | --- | --- |", flush=True)
    for models in (_torchvision, _timm, _transformers):
        for name, made in models():
            if names and not any(part in name for part in names):
                continue
            with tempfile.TemporaryDirectory() as folder:
                try:
                    row = check(compare, export, name, made, Path(folder))
                except Exception as error:
                    row = dict.fromkeys(("exports", "loads", "loss", "gradients", "steps"), "")
                    row["exports"] = f"{type(error).__name__}: {error}".split("\n")[0][:100]
            counts["tried"] += 1
            counts["loads"] += row["loads"] == "yes"
            counts["loss"] += row["loss"] == "equal"
            counts["all"] += row["loss"] == "equal" and "apart" not in row["steps"] and " at " not in row["gradients"]
            print(f"| {name} | {' | '.join(row.values())} |", flush=True)
    print(f"\n{counts['tried']} tried, {counts['loads']} load, {counts['loss']} with an equal loss, {counts['all']} equal in all.")


if __name__ == "__main__":
    main()
