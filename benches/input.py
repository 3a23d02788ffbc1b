"""Reads a folder of JPEGs by Plimsoll, tf.data and a PyTorch DataLoader in turn, and prints images a second, processor time, memory and ratios.

usage: python benches/input.py [--images 1600] [--batch 64] [--side 224] [--rounds 3] [--threads 2] [--binary target/release/plimsoll] [--folder DIR] [--out FILE.jsonl]

Makes the folder with Pillow unless it is there: photos of 500 x 375 of 1/f noise at quality 90, ten classes. Every reader makes
batches of float pixels and labels; the first pass warms caches and compilers, the second is timed. Readers run one after
another, in processes of their own, on the same processors. Memory is the most that the process and its workers held together, shared
pages counted once (PSS), sampled every 50 ms. A peer that cannot be imported is left out by name (pip install tensorflow-cpu
torch torchvision). Build first: cargo build --release.
"""
import argparse, json, os, pathlib, subprocess, sys, tempfile, threading, time

HERE = pathlib.Path(__file__).resolve().parent
WIDTH, HEIGHT, CLASSES = 500, 375, 10


def make_folder(folder, count):
    """Photos whose spectrum falls as that of natural ones does, so that their files are as long."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(7)
    for index in range(count):
        path = folder / f"class{index % CLASSES}" / f"{index:05}.jpg"
        pixels = np.full((HEIGHT, WIDTH, 3), 118, np.float32)
        for octave in range(2, 9):
            side = 2**octave
            noise = random.standard_normal((side * 3 // 4, side, 1)) + 0.35 * random.standard_normal((side * 3 // 4, side, 3))
            noise = Image.fromarray(((np.clip(noise, -3, 3) / 6 + 0.5) * 255).astype(np.uint8))
            noise = np.asarray(noise.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.float32)
            pixels += (noise / 255 - 0.5) * 6 * 55 / 2 ** ((octave - 2) * 0.8)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path, quality=90)


def cpu_seconds():
    """Processor time of this process and of the workers that it started."""
    total = time.process_time()
    for child in children(os.getpid()):
        fields = pathlib.Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def passes(batches, count):
    """Two passes; the second is timed."""
    for timed in (False, True):
        began, cpu = time.perf_counter(), cpu_seconds()
        images = sum(len(labels) for _, labels in batches)
        seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu
        assert images == count, f"{images} of {count} images were read"
    print(json.dumps({"images_s": images / seconds, "cpu_ms": 1e3 * cpu / images}))


def tensorflow(args):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(args.threads)
    tf.config.threading.set_intra_op_parallelism_threads(args.threads)
    data = tf.keras.utils.image_dataset_from_directory(
        args.folder, batch_size=args.batch, image_size=(args.side, args.side), shuffle=False, verbose=False)
    passes(data.prefetch(tf.data.AUTOTUNE), args.images)


def pytorch(args):
    import torch
    from torchvision import datasets, transforms

    torch.set_num_threads(1)
    change = transforms.Compose([transforms.Resize((args.side, args.side)), transforms.ToTensor()])
    data = datasets.ImageFolder(args.folder, change)
    loader = torch.utils.data.DataLoader(data, args.batch, num_workers=args.threads, persistent_workers=True)
    passes(loader, args.images)


def plimsoll(args):
    command = [args.binary, "data", args.folder, "--batch", args.batch, "--image", args.side, "--threads", args.threads, "--passes", 2, "--json"]
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True)
    last = json.loads(done.stdout)["passes"][-1]
    print(json.dumps({"images_s": last["samples_per_second"], "cpu_ms": 1e3 * last["cpu_seconds_per_sample"]}))


READERS = {"plimsoll": plimsoll, "tf.data": tensorflow, "DataLoader": pytorch}


def children(pid):
    try:
        below = [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return below + [grandchild for child in below for grandchild in children(child)]


def pss_mib(pids):
    total = 0
    for pid in pids:
        try:
            lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except OSError:
            pass  # It has ended.
    return total / 1024


def measure(reader, argv):
    """Runs one reader in a process of its own."""
    child = subprocess.Popen([sys.executable, __file__, *argv, "--reader", reader], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    most = 0.0

    def watch():
        nonlocal most
        while child.poll() is None:
            # Plimsoll's own Python parent is no part of it.
            most = max(most, pss_mib(children(child.pid) + ([] if reader == "plimsoll" else [child.pid])))
            time.sleep(0.05)

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, err = child.communicate()
    watcher.join()
    if child.returncode != 0:
        print(f"{reader} is left out: {(err.strip().splitlines() or ['no message'])[-1]}", file=sys.stderr)
        return None
    return {"reader": reader, **json.loads(out.strip().splitlines()[-1]), "peak_mib": most}


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--images", type=int, default=1600)
    a.add_argument("--batch", type=int, default=64)
    a.add_argument("--side", type=int, default=224)
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--binary", default=str(HERE.parent / "target" / "release" / "plimsoll"))
    a.add_argument("--folder")
    a.add_argument("--out")
    a.add_argument("--reader", choices=READERS, help=argparse.SUPPRESS)
    args = a.parse_args()
    args.folder = args.folder or os.path.join(tempfile.gettempdir(), f"plimsoll-input-{args.images}")
    if args.reader:
        return READERS[args.reader](args)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    if not os.path.isdir(args.folder):
        print(f"making {args.images} photos in {args.folder}", file=sys.stderr)
        make_folder(pathlib.Path(args.folder), args.images)
    argv = [f"--{name}={getattr(args, name)}" for name in ("images", "batch", "side", "threads", "binary", "folder")]
    raw = []
    for _ in range(args.rounds):
        for reader in READERS:
            line = measure(reader, argv)
            if line:
                raw.append(line)
                print(json.dumps(line), flush=True)
    best = {}
    for line in raw:
        own = best.setdefault(line["reader"], dict(line))
        own["images_s"] = max(own["images_s"], line["images_s"])
        own["cpu_ms"], own["peak_mib"] = min(own["cpu_ms"], line["cpu_ms"]), min(own["peak_mib"], line["peak_mib"])
    print(f"\n{args.images} JPEGs of {WIDTH} x {HEIGHT} to {args.side} x {args.side}, batch {args.batch}, {args.threads} processors, best of {args.rounds}\n")
    print("| reader | images/s | processor ms an image | peak MiB |\n| --- | --- | --- | --- |")
    for reader, line in best.items():
        print(f"| {reader} | {line['images_s']:.0f} | {line['cpu_ms']:.2f} | {line['peak_mib']:.0f} |")
    peers = [line for reader, line in best.items() if reader != "plimsoll"]
    if "plimsoll" in best and peers:
        ours = best["plimsoll"]
        speed = ours["images_s"] / max(peer["images_s"] for peer in peers)
        memory = ours["peak_mib"] / min(peer["peak_mib"] for peer in peers)
        print(f"\n{speed:.2f} x the speed of the faster peer, {memory:.2f} x the memory of the smaller one")
    if args.out:
        pathlib.Path(args.out).write_text("".join(json.dumps(line) + "\n" for line in raw))


if __name__ == "__main__":
    main()
