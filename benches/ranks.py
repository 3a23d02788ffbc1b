"""Two ranks of one thread against one rank of two threads, and against PyTorch's DistributedDataParallel over gloo.

usage: python benches/ranks.py [--binary PLIMSOLL] [--seconds S] [--rounds N] [--out FILE.jsonl] [--no-torch] [cnn gpt]

Each case is trained on random numbers for about S seconds, in turn, N rounds; a way counts with its best round (samples a second, from the
second epoch on). Wanted: two ranks, by the way to share a training that is fastest (`--parallel auto` chooses
by what is predicted), reach 0.95 of one rank with two threads, and at least what PyTorch's two ranks reach. Build first
(cargo build --release) and leave the machine alone. The interpreter that runs this script runs PyTorch (pip install torch).
"""
import argparse, json, os, subprocess, sys, tempfile, time

HERE = os.path.dirname(os.path.abspath(__file__))
# Batch, flags of plimsoll, samples of an epoch.
CASES = {
    "cnn": (64, ["--width", "32", "--depth", "3", "--image", "32", "--classes", "10"], 640),
    "gpt": (8, ["--width", "256", "--depth", "4", "--heads", "4", "--sequence", "128", "--classes", "1000"], 64),
}


def plimsoll(binary, case, ranks, parallel, seconds):
    """Samples a second of a training on so many ranks, two threads in all."""
    batch, flags, samples = CASES[case]
    with tempfile.TemporaryDirectory() as folder:
        command = [binary, "train", case, "--data", "random", "--metrics", "none", "--batch", str(batch), *flags, "--take", str(samples),
                   "--epochs", "100000", "--threads", str(2 // ranks), "--json", "--out", os.path.join(folder, "run")]
        if ranks > 1:
            command += ["--ranks", str(ranks), "--parallel", parallel]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        rates, until = [], None
        for line in child.stdout:
            said = json.loads(line)
            if said.get("event") == "epoch":
                until = until or time.time() + seconds
                rates.append(said["samples_s"])
                if time.time() > until:
                    break
        child.terminate()
        for _ in child.stdout:
            pass
        why = child.stderr.read()
        child.wait()
    if len(rates) < 2:
        sys.exit(f"{' '.join(command)}: no epochs to measure; {why}")
    return max(rates[1:])


def torch_model(case):
    import torch
    from torch import nn

    if case == "cnn":
        layers, before = [], 3
        for width in (32, 64, 128):
            for _ in range(2):
                layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
                before = width
            layers.append(nn.MaxPool2d(2))
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 4 * 4, 10)), torch.randn(64, 3, 32, 32), torch.randint(10, (64,))

    class Block(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            b, t, d = x.shape
            q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
            x = x + self.out(y)
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self, vocabulary=1000, length=128, width=256, depth=4, heads=4):
            super().__init__()
            self.token, self.position = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(length, width))
            self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
            self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

        def forward(self, x):
            return self.out(self.norm(self.blocks(self.token(x) + self.position))).flatten(0, 1)

    return Gpt(), torch.randint(1000, (8, 128)), torch.randint(1000, (8 * 128,))


def torch_rank(case, rank, ranks, seconds):
    """One rank of PyTorch's: prints samples a second of the whole batch."""
    import torch

    torch.set_num_threads(2 // ranks)
    torch.manual_seed(0)
    model, x, y = torch_model(case)
    batch = len(x)
    if ranks > 1:
        torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
        model = torch.nn.parallel.DistributedDataParallel(model)
    own = slice(rank * batch // ranks, (rank + 1) * batch // ranks)
    per = len(y) // batch
    x, y = x[own], y[own.start * per:own.stop * per]
    adam = torch.optim.Adam(model.parameters(), 1e-3)

    def steps(n):
        began = time.perf_counter()
        for _ in range(n):
            adam.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(model(x), y).backward()
            adam.step()
        return time.perf_counter() - began

    steps(2)
    # All ranks do as many steps.
    n = torch.tensor([max(2, int(seconds / 4 / (steps(2) / 2)))])
    if ranks > 1:
        torch.distributed.broadcast(n, 0)
    best = max(batch * int(n) / steps(int(n)) for _ in range(3))
    if rank == 0:
        print(json.dumps(best))
    if ranks > 1:
        torch.distributed.destroy_process_group()


def torch(case, ranks, seconds):
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 20000)}
    words = [sys.executable, os.path.abspath(__file__), "--torch-rank", case]
    started = [subprocess.Popen([*words, str(r), str(ranks), str(seconds)], stdout=subprocess.PIPE, text=True, env=env) for r in range(ranks)]
    said = [child.communicate()[0] for child in started]
    if any(child.returncode for child in started):
        sys.exit(f"PyTorch's {case} on {ranks} ranks failed")
    return json.loads(said[0].strip().splitlines()[-1])


def main():
    if sys.argv[1:2] == ["--torch-rank"]:
        case, rank, ranks, seconds = sys.argv[2:6]
        return torch_rank(case, int(rank), int(ranks), float(seconds))
    a = argparse.ArgumentParser()
    a.add_argument("cases", nargs="*", default=list(CASES))
    a.add_argument("--binary", default=os.path.join(HERE, "..", "target", "release", "plimsoll"))
    a.add_argument("--seconds", type=float, default=6)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--no-torch", action="store_true")
    a.add_argument("--out")
    args = a.parse_args()
    rows = []
    for case in args.cases or list(CASES):
        ways = {
            "one rank, two threads": lambda: plimsoll(args.binary, case, 1, "data", args.seconds),
            "two ranks, data": lambda: plimsoll(args.binary, case, 2, "data", args.seconds),
            "two ranks, shard": lambda: plimsoll(args.binary, case, 2, "shard", args.seconds),
            "two ranks, parameters": lambda: plimsoll(args.binary, case, 2, "parameters", args.seconds),
            "two ranks, tensor": lambda: plimsoll(args.binary, case, 2, "tensor", args.seconds),
        }
        if not args.no_torch:
            ways["PyTorch, two threads"] = lambda: torch(case, 1, args.seconds)
            ways["PyTorch DDP, two ranks"] = lambda: torch(case, 2, args.seconds)
        best = {}
        for round_ in range(args.rounds):
            for name, measure in ways.items():
                rate = measure()
                best[name] = max(best.get(name, 0), rate)
                rows.append({"case": case, "way": name, "round": round_, "samples_s": rate})
                print(json.dumps(rows[-1]), flush=True)
        one = best["one rank, two threads"]
        two = {name: rate for name, rate in best.items() if name.startswith("two ranks")}
        for name, rate in two.items():
            print(f"{case}: {name}: {rate / one:.3f} of one rank with two threads")
        name = max(two, key=two.get)
        print(f"{case}: the fastest way, {name}, reaches {two[name] / one:.3f} of one rank with two threads (wanted: 0.95)")
        if "PyTorch DDP, two ranks" in best:
            print(f"{case}: it reaches {two[name] / best['PyTorch DDP, two ranks']:.3f} of PyTorch DDP (wanted: 1)")
    if args.out:
        with open(args.out, "w") as out:
            out.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
