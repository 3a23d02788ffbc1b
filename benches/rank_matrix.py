"""Every way to share a training against one rank: losses of 50 steps, bits from run to run, and peaks against the memory limit.

usage: python benches/rank_matrix.py [--binary PLIMSOLL] [--ranks 1,2,3,4] [--by tcp,openmpi,mpich] [--ways data,shard,parameters,pipeline]
                                     [--models mlp,cnn,unet,gpt,lstm,keras] [--precisions f64,f32]
                                     [--memory 200MiB] [--least] [--out FOLDER]

Each training is small: 50 steps or a little more, the last batch of an epoch with fewer samples. A row says by how much the losses of its steps differ from
those of one rank (relative to 1 + |loss|; wanted: 1e-9 in f64, 1e-5 in f32), whether a second run gives the same numbers, and the largest peak resident set of any
of its processes as the kernel counts it, of the limit. With --least, each is also run at the least that a refusal names (a build without optimizations a little
above it) and one byte below, which must be refused. What is refused by name is a row too. The table goes to standard output and, with --out, to table.txt and
rows.jsonl there. Exit code 1 where something differs by more than is wanted, or is over its limit.
"""
import argparse, csv, json, os, re, shutil, subprocess, sys, tempfile, threading, zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = {
    "mlp": "--width 16 --depth 3 --image 8 --classes 7",
    "cnn": "--width 4 --depth 2 --image 8 --classes 7",
    "unet": "--width 4 --depth 2 --image 16 --classes 3",
    "gpt": "--width 16 --depth 2 --heads 2 --sequence 8 --classes 11",
    "lstm": "--width 16 --depth 2 --sequence 8 --classes 11",
}
# 26 samples in batches of 5: six steps an epoch, the last of one sample.
DATA = "--data random --take 26 --batch 5 --epochs 9 --metrics none"
# A file that Keras wrote, with samples and labels beside it.
KERAS = os.path.join(HERE, "../crates/keras/tests/fixtures/mlp")
WANTED = {"f64": 1e-9, "f32": 1e-5}
MPI = {
    "openmpi": ["mpirun.openmpi", "--oversubscribe", "--allow-run-as-root", "--mca", "btl_vader_single_copy_mechanism", "none"],
    "mpich": ["mpirun.mpich"],
}


def bytes_of(text):
    number, unit = re.fullmatch(r"([\d.]+)\s*([A-Za-z]*)", text.strip()).groups()
    return int(float(number) * {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit])


def ran(command, seconds):
    """Runs a command: its exit code, what it said was wrong, and the largest resident set of it and of all it waited for."""
    with tempfile.TemporaryFile() as err, open(os.devnull, "wb") as null:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=null, stderr=err)
        timer = threading.Timer(seconds, child.kill)
        timer.start()
        _, status, usage = os.wait4(child.pid, 0)
        timer.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        err.seek(0)
        return child.returncode, err.read().decode(errors="replace").strip(), usage.ru_maxrss * 1024


class Case:
    def __init__(self, args, model, precision):
        self.args, self.model, self.precision = args, model, precision
        if model == "keras":
            self.words = ["train", f"{KERAS}.keras", "--data", args.keras_data, "--batch", "5", "--epochs", "10"]
        else:
            self.words = ["train", model, *SIZES[model].split(), *DATA.split(), "--precision", precision]
        self.words += ["--threads", "1", "--seed", "3", "--quiet"]

    def command(self, by, ranks, way, memory, out):
        own = [self.args.binary, *self.words, "--memory", str(memory), "--out", out]
        if ranks > 1 or way != "data":
            own += ["--parallel", way]
        # Batch norm has statistics of each rank's own samples, unless it is asked otherwise.
        if self.model == "unet" and ranks > 1 and way != "pipeline":
            own += ["--sync-batch-norm"]
        if by == "tcp":
            return own + (["--ranks", str(ranks)] if ranks > 1 else [])
        return [*MPI[by], "-n", str(ranks), *own]

    def run(self, by, ranks, way, memory):
        """Losses of steps, the peak, and why it failed."""
        folder = tempfile.mkdtemp()
        out = os.path.join(folder, "run")
        try:
            code, why, peak = ran(self.command(by, ranks, way, memory, out), self.args.seconds)
            losses = []
            if code == 0:
                with open(os.path.join(out, "steps.csv")) as file:
                    losses = [float(row["loss"]) for row in csv.DictReader(file)]
            return losses, peak, None if code == 0 else (why.splitlines() or [f"it ended with {code}"])[-1]
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def difference(found, one):
    if len(found) != len(one):
        return float("inf")
    return max(abs(a - b) / (1 + abs(b)) for a, b in zip(found, one))


def least(case, by, ranks, way, grain):
    """The least that a refusal names, whether it works, and whether a byte less is refused."""
    _, _, why = case.run(by, ranks, way, 1 << 20)
    found = re.search(r"at least ([\d,]+) bytes|\(([\d,]+) bytes\)|([\d.]+ [KMG]iB)", why or "")
    if not found:
        return None, None, None
    text = next(group for group in found.groups() if group)
    named = bytes_of(text) if "iB" in text else int(text.replace(",", ""))
    _, peak, refused = case.run(by, ranks, way, named + grain)
    _, _, below = case.run(by, ranks, way, named - 1 - grain)
    return named, refused is None and peak <= named + grain, below is not None


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--binary", default=os.path.join(HERE, "../target/release/plimsoll"))
    parser.add_argument("--ranks", default="1,2,3,4")
    parser.add_argument("--by", default="tcp,openmpi,mpich")
    parser.add_argument("--ways", default="data,shard,parameters,pipeline")
    parser.add_argument("--models", default="mlp,cnn,unet,gpt,lstm,keras")
    parser.add_argument("--precisions", default="f64,f32")
    parser.add_argument("--memory", default="200MiB")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--least", action="store_true")
    parser.add_argument("--grain", type=int, default=0, help="bytes above the least, for a build without optimizations")
    parser.add_argument("--out")
    args = parser.parse_args()
    limit = bytes_of(args.memory)
    models = args.models.split(",")
    args.keras_data = tempfile.mkdtemp()
    with zipfile.ZipFile(f"{KERAS}.npz") as arrays:
        for name, own in [("x0", "x"), ("t0", "y")]:
            with open(os.path.join(args.keras_data, f"{own}.npy"), "wb") as file:
                file.write(arrays.read(f"{name}.npy"))
    rows, bad = [], 0
    table = [f"{'model':<7}{'type':<6}{'ranks':<7}{'by':<9}{'way':<12}{'steps':>6}{'differs':>11}  {'again':<7}{'peak':>9}{'of':>7}  "]
    if args.out:
        os.makedirs(args.out, exist_ok=True)

    def say(line):
        table.append(line)
        print(line, flush=True)

    print(table[0])
    for model in models:
        for precision in ["f32"] if model == "keras" else args.precisions.split(","):
            case = Case(args, model, precision)
            one, peak, why = case.run("tcp", 1, "data", limit)
            if why:
                sys.exit(f"{model} in {precision} on one rank: {why}")
            for ranks in map(int, args.ranks.split(",")):
                for by in args.by.split(","):
                    if by in MPI and not shutil.which(MPI[by][0]):
                        continue
                    for way in args.ways.split(","):
                        name = f"{model:<7}{precision:<6}{ranks:<7}{by:<9}{way:<12}"
                        losses, peak, why = case.run(by, ranks, way, limit)
                        row = {"model": model, "precision": precision, "ranks": ranks, "by": by, "parallel": way, "limit_bytes": limit}
                        if why:
                            row["refused"] = why
                            say(f"{name}  {why}")
                        else:
                            again, _, _ = case.run(by, ranks, way, limit)
                            far, same = difference(losses, one), again == losses
                            is_well = far <= WANTED[precision] and same and peak <= limit
                            bad += not is_well
                            row.update(steps=len(losses), difference=far, same_bits=same, peak_bytes=peak)
                            note = "" if is_well else "  NOT AS WANTED"
                            say(f"{name}{len(losses):>6}{far:>11.1e}  {'same' if same else 'OTHER':<7}"
                                f"{peak / (1 << 20):>6.0f}MiB{limit / (1 << 20):>4.0f}MiB{note}")
                            if args.least:
                                row["least_bytes"], row["least_works"], row["below_refused"] = least(case, by, ranks, way, args.grain)
                                is_well = row["least_works"] and row["below_refused"]
                                bad += not is_well
                                say(f"{'':<41}least {row['least_bytes']}: works {row['least_works']}, below refused {row['below_refused']}")
                        rows.append(row)
    shutil.rmtree(args.keras_data, ignore_errors=True)
    say(f"{len(rows)} rows, {bad} not as wanted")
    if args.out:
        with open(os.path.join(args.out, "table.txt"), "w") as file:
            file.write("\n".join(table) + "\n")
        with open(os.path.join(args.out, "rows.jsonl"), "w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
