"""Exports models of torchvision and transformers with PyTorch and compares what the command predicts with onnxruntime, and how it trains with PyTorch.

    python real_models.py PLIMSOLL [NAME ...]
    python real_models.py PLIMSOLL --train [NAME ...]
    python real_models.py PLIMSOLL --apart [NAME ...]

PLIMSOLL is the command; NAMEs are of the tables below, all by default. Needs torch, torchvision, transformers, onnx, onnxruntime. Weights are
random: what is compared is the arithmetic. Predictions are to be within 1e-4. With --train, each model takes 20 steps of gradient descent on one batch, and
every loss is to be within 1e-5 of PyTorch's. That is in f64: in f32 PyTorch is not equal to itself there (--apart shows how far losses part whose
inputs are 3e-7 apart: 5e-2 for mobilenet_v2, 1e-1 for shufflenet and regnet), because small batches are normed and activations have kinks. And it is with
the epsilon of batch norms that the file has, which holds it in f32.
"""

import json
import os
import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime
import torch

VISION = {
    "resnet18": 64, "resnet50": 64, "mobilenet_v2": 64, "mobilenet_v3_small": 64, "squeezenet1_1": 64, "densenet121": 64,
    "shufflenet_v2_x1_0": 64, "efficientnet_b0": 64, "vgg11": 224, "googlenet": 64, "regnet_y_400mf": 64, "mnasnet0_5": 64,
    "convnext_tiny": 64, "vit_b_16": 224, "swin_t": 224, "inception_v3": 96, "alexnet": 224, "resnext50_32x4d": 64,
    "wide_resnet50_2": 64, "efficientnet_v2_s": 64, "resnet34": 64, "mobilenet_v3_large": 64, "vgg11_bn": 224, "squeezenet1_0": 64,
}
TEXT = ["bert", "distilbert", "roberta", "gpt2", "electra", "albert", "camembert", "xlm_roberta"]
# Without what is random in training.
TRAINED = {
    "resnet18": {}, "resnet34": {}, "resnet50": {}, "resnext50_32x4d": {}, "densenet121": {}, "shufflenet_v2_x1_0": {}, "regnet_y_400mf": {},
    "mobilenet_v2": {"dropout": 0.0}, "squeezenet1_1": {"dropout": 0.0},
    "convnext_tiny": {"stochastic_depth_prob": 0.0}, "mobilenet_v3_small": {"dropout": 0.0}, "mnasnet0_5": {"dropout": 0.0},
}
# The rate is small where norms of few samples and kinks blow up the last bits of f64 within 20 steps.
STEPS, RATE, SMALL = 20, 1e-3, {"mobilenet_v2": 1e-4, "regnet_y_400mf": 1e-4}


def vision(name, **extra):
    import torchvision

    if name in ("googlenet", "inception_v3"):
        extra |= {"aux_logits": False, "init_weights": False}
    model = getattr(torchvision.models, name)(weights=None, num_classes=10, **extra).eval()
    side = VISION[name]
    return model, torch.randn(3, 3, side, side), "x", {}


def text(name):
    import transformers as t

    small = dict(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    configs = {
        "bert": lambda: t.BertForSequenceClassification(t.BertConfig(**small)),
        "roberta": lambda: t.RobertaForSequenceClassification(t.RobertaConfig(**small, pad_token_id=1)),
        "electra": lambda: t.ElectraForSequenceClassification(t.ElectraConfig(**small, embedding_size=32)),
        "albert": lambda: t.AlbertForSequenceClassification(t.AlbertConfig(**small, embedding_size=16)),
        "camembert": lambda: t.CamembertForSequenceClassification(t.CamembertConfig(**small, pad_token_id=1)),
        "xlm_roberta": lambda: t.XLMRobertaForSequenceClassification(t.XLMRobertaConfig(**small, pad_token_id=1)),
        "distilbert": lambda: t.DistilBertForSequenceClassification(
            t.DistilBertConfig(vocab_size=100, dim=32, n_layers=2, n_heads=4, hidden_dim=64)),
        "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, use_cache=False)),
    }
    model = configs[name]()
    # GPT-2's own code asks for names.
    model.config.return_dict = name == "gpt2"
    model.config.use_cache = False
    return model.eval(), torch.randint(2, 100, (3, 12)), "tokens", {1: "sequence"}


class First(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        y = self.model(x)
        y = getattr(y, "logits", y)
        return y[0] if isinstance(y, (tuple, list)) else y


def export(model, x, key, axes, path, **more):
    torch.onnx.export(
        First(model).eval(), (x,), path, dynamo=False, opset_version=17, **more, input_names=[key], output_names=["y"],
        dynamic_axes={key: {0: "batch", **axes}, "y": {0: "batch"}})


def batch(name, dtype):
    """A model and the one batch that it learns: the whole data, so that its order says nothing."""
    torch.manual_seed(1)
    model, _, key, axes = vision(name, **TRAINED[name])
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.eps = float(np.float32(module.eps))
    x = torch.randn(8, 3, VISION[name], VISION[name])
    return model.to(dtype), x.to(dtype), torch.arange(8) % 10, key, axes


def losses(model, x, y, rate):
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def most(found, wanted):
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(found, wanted)) if len(found) == len(wanted) else float("inf")


def apart(names):
    """How far PyTorch is from itself in f32, with inputs that differ in their last bits."""
    for name in names or TRAINED:
        model, x, y, _, _ = batch(name, torch.float32)
        wanted = losses(model, x, y, RATE)
        model, x, y, _, _ = batch(name, torch.float32)
        far = most(losses(model, x * (1 + 3e-7), y, RATE), wanted)
        print(f"{name:22} PyTorch's own losses differ by {far:.1e} in f32", flush=True)


def train(command, names):
    bad = 0
    for name in names or TRAINED:
        with tempfile.TemporaryDirectory() as folder:
            path, data, out = (os.path.join(folder, own) for own in ("model.onnx", "data.npz", "run"))
            model, x, y, key, axes = batch(name, torch.float64)
            # Batch norms are to stay by themselves: an export for use alone folds them into what is before them.
            export(model, x, key, axes, path, training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False)
            np.savez(data, **{key: x.numpy(), "y": y.numpy()})
            ran = subprocess.run(
                [command, "train", path, "--data", data, "--out", out, "--batch", "8", "--epochs", str(STEPS), "--optimizer", "sgd",
                 "--lr", str(SMALL.get(name, RATE)), "--loss", "cross-entropy", "--json"], capture_output=True, text=True)
            if ran.returncode:
                print(f"{name:22} refused: {ran.stderr.strip()[:200]}", flush=True)
                bad += 1
                continue
            events = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
            found = [event["loss"] for event in events if event.get("event") == "epoch"]
            wanted = losses(model, x, y, SMALL.get(name, RATE))
            far = most(found, wanted)
            print(f"{name:22} {wanted[0]:.4f} -> {wanted[-1]:.4f}, losses differ by {far:.1e}{'' if far < 1e-5 else '  <-- WRONG'}", flush=True)
            bad += not far < 1e-5
    sys.exit(bad)


def main(command, names):
    bad = 0
    for name in names or [*VISION, *TEXT]:
        torch.manual_seed(1)
        with tempfile.TemporaryDirectory() as folder:
            path, data, out = (os.path.join(folder, own) for own in ("model.onnx", "data.npz", "out.npy"))
            try:
                model, x, key, axes = (vision if name in VISION else text)(name)
                export(model, x, key, axes, path)
            except Exception as error:
                print(f"{name:22} not exported: {str(error).splitlines()[0][:100]}", flush=True)
                continue
            array = x.numpy()
            wanted = onnxruntime.InferenceSession(path).run(None, {key: array})[0]
            np.savez(data, **{key: array})
            ran = subprocess.run([command, "predict", path, "--data", data, "--out", out, "--batch", "3"],
                                 capture_output=True, text=True)
            if ran.returncode:
                print(f"{name:22} refused: {ran.stderr.strip()[:200]}", flush=True)
                bad += 1
                continue
            far = float(np.abs(np.load(out) - wanted).max() / max(1.0, np.abs(wanted).max()))
            print(f"{name:22} differs by {far:.1e}", flush=True)
            bad += not far < 1e-4
    sys.exit(bad)


if __name__ == "__main__":
    if sys.argv[2:3] == ["--train"]:
        train(sys.argv[1], sys.argv[3:])
    if sys.argv[2:3] == ["--apart"]:
        sys.exit(apart(sys.argv[3:]))
    main(sys.argv[1], sys.argv[2:])
