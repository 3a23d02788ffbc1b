"""Every way to share a training against one rank: losses of 50 steps, bits from run to run, and peaks against the memory limit.

usage: python benches/rank_matrix.py [--binary PLIMSOLL] [--ranks 1,2,3,4] [--by tcp,openmpi,mpich] [--ways data,shard,parameters,tensor,pipeline]
                                     [--models mlp,cnn,unet,gpt,lstm,keras] [--precisions f64,f32]
                                     [--memory 200MiB] [--least] [--out FOLDER]

Each training is small: 50 steps or a little more, the last batch of an epoch with fewer samples. A row says by how much the losses of its steps differ from
those of one rank (relative to 1 + |loss|; wanted: 1e-9 in f64, 1e-5 in f32), whether a second run gives the same numbers, and the largest peak resident set of any
of its processes as the kernel counts it, of the limit. With --least, each is also run at the least that a refusal names (a build without optimizations a little
above it) and one byte below, which must be refused. What is refused by name is a row too. The table goes to standard output and, with --out, to table.txt and
rows.jsonl there; a run goes on from the rows that are there already. Exit code 1 where something differs by more than is wanted, or is over its limit.
"""
import argparse, csv, itertools, json, os, re, resource, shutil, subprocess, sys, tempfile, threading, zipfile

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


def measured(file, command):
    """Runs a rank for a launcher, whose own memory is not the rank's, and writes down the largest resident set of it."""
    # Launchers talk to their ranks through what they opened for them.
    code = subprocess.run(command, close_fds=False).returncode
    with open(f"{file}.{os.getpid()}", "w") as out:
        out.write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024))
    return code


class Case:
    def __init__(self, args, model, precision):
        self.args, self.model, self.precision = args, model, precision
        if model == "keras":
            self.words = ["train", f"{KERAS}.keras", "--data", args.keras_data, "--batch", "5", "--epochs", "25"]
        else:
            self.words = ["train", model, *SIZES[model].split(), *DATA.split(), "--precision", precision]
        self.words += ["--threads", "1", "--seed", "3", "--quiet"]

    def command(self, by, ranks, way, memory, out):
        own = [self.args.binary, *self.words, "--memory", str(memory), "--out", out]
        if ranks > 1 or way != "data":
            own += ["--parallel", way]
        # Batch norm has statistics of each rank's own samples, unless it is asked otherwise.
        if self.model == "unet" and ranks > 1 and way not in ("pipeline", "tensor"):
            own += ["--sync-batch-norm"]
        if by == "tcp":
            return own + (["--ranks", str(ranks)] if ranks > 1 else [])
        return [*MPI[by], "-n", str(ranks), sys.executable, os.path.abspath(__file__), "--measured", f"{out}.peak", *own]

    def run(self, by, ranks, way, memory):
        """Losses of steps, the peak, and why it failed."""
        folder = tempfile.mkdtemp()
        out = os.path.join(folder, "run")
        try:
            code, why, peak = ran(self.command(by, ranks, way, memory, out), self.args.seconds)
            if by in MPI:
                peaks = [os.path.join(folder, name) for name in os.listdir(folder) if name.startswith("run.peak.")]
                # A launcher that ends the others of a rank that was refused ends what measures them, too.
                peak = max((int(open(name).read() or 0) for name in peaks), default=0)
                if code == 0 and len(peaks) != ranks:
                    return [], 0, f"{ENDED} {len(peaks)} peaks of {ranks} ranks"
            losses = []
            if code == 0:
                with open(os.path.join(out, "steps.csv")) as file:
                    losses = [float(row["loss"]) for row in csv.DictReader(file)]
            return losses, peak, None if code == 0 else why or f"{ENDED} {code}"
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def difference(found, one):
    if len(found) != len(one):
        return float("inf")
    return max(abs(a - b) / (1 + abs(b)) for a, b in zip(found, one))


def least(case, by, ranks, way, grain):
    """The least that a refusal names, whether it works, and whether a byte less is refused."""
    _, _, why = case.run(by, ranks, way, 1 << 20)
    found = re.findall(r"the least for this step is [\d.]+ [KMG]iB \((\d+) bytes\)", why or "")
    if len(found) != 1:
        return None, f"{len(found)} ranks said the least", None
    named = int(found[0])
    _, peak, refused = case.run(by, ranks, way, named + grain)
    _, _, below = case.run(by, ranks, way, named - 1 - grain)
    return named, refused is None and peak <= named + grain, below is not None


def is_well(row):
    """Whether a row is as it is wanted; what is refused by name is, and what was killed or ended without a word is not."""
    if "refused" in row:
        return not row["refused"].startswith(ENDED)
    met = row["difference"] <= WANTED[row["precision"]] and row["same_bits"] and row["peak_bytes"] <= row["limit_bytes"]
    return met and row.get("least_works", True) is True and row.get("below_refused", True) is True


ENDED = "it ended with"
HEAD = f"{'model':<7}{'type':<6}{'ranks':<7}{'by':<9}{'way':<12}{'steps':>6}{'differs':>11}  {'again':<7}{'peak':>9}{'of':>7}"


def line(row):
    """A row as text."""
    name = f"{row['model']:<7}{row['precision']:<6}{row['ranks']:<7}{row['by']:<9}{row['parallel']:<12}"
    if "refused" in row:
        return f"{name}  {row['refused']}"
    text = (f"{name}{row['steps']:>6}{row['difference']:>11.1e}  {'same' if row['same_bits'] else 'OTHER':<7}"
            f"{row['peak_bytes'] / (1 << 20):>6.0f}MiB{row['limit_bytes'] / (1 << 20):>4.0f}MiB")
    if "second_run" in row:
        text += f"  the second run: {row['second_run']}"
    if "least_bytes" in row:
        text += f"  least {row['least_bytes']}: works {row['least_works']}, below refused {row['below_refused']}"
    return text if is_well(row) else f"{text}  NOT AS WANTED"


class Rows:
    """The rows of a table, those of an earlier run among them; each is in its file as soon as it is known."""

    def __init__(self, folder):
        self.all, self.file = [], None
        if folder:
            os.makedirs(folder, exist_ok=True)
            path = os.path.join(folder, "rows.jsonl")
            if os.path.exists(path):
                with open(path) as file:
                    self.all = [json.loads(text) for text in file if text.strip()]
            self.file = open(path, "a")

    def has(self, row):
        same = ("model", "precision", "ranks", "by", "parallel")
        return any(all(known[name] == row[name] for name in same) for known in self.all)

    def add(self, row):
        self.all.append(row)
        print(line(row), flush=True)
        if self.file:
            self.file.write(json.dumps(row) + "\n")
            self.file.flush()


def main():
    if sys.argv[1:2] == ["--measured"]:
        sys.exit(measured(sys.argv[2], sys.argv[3:]))
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--binary", default=os.path.join(HERE, "../target/release/plimsoll"))
    parser.add_argument("--ranks", default="1,2,3,4")
    parser.add_argument("--by", default="tcp,openmpi,mpich")
    parser.add_argument("--ways", default="data,shard,parameters,tensor,pipeline")
    parser.add_argument("--models", default="mlp,cnn,unet,gpt,lstm,keras")
    parser.add_argument("--precisions", default="f64,f32")
    parser.add_argument("--memory", default="200MiB")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--least", action="store_true")
    parser.add_argument("--grain", type=int, default=0, help="bytes above the least, for a build without optimizations")
    parser.add_argument("--out")
    args = parser.parse_args()
    if os.path.basename(args.binary) != "plimsoll":
        # Ranks are started by the command itself, which knows itself by its name: under another one all rows over TCP would be refused, and look well.
        sys.exit(f"--binary {args.binary}: the command must be called plimsoll")
    limit = bytes_of(args.memory)
    args.keras_data = tempfile.mkdtemp()
    with zipfile.ZipFile(f"{KERAS}.npz") as arrays:
        for name, own in [("x0", "x"), ("t0", "y")]:
            with open(os.path.join(args.keras_data, f"{own}.npy"), "wb") as file:
                file.write(arrays.read(f"{name}.npy"))
    rows = Rows(args.out)
    print(HEAD)
    for model in args.models.split(","):
        for precision in ["f32"] if model == "keras" else args.precisions.split(","):
            case, one = Case(args, model, precision), None
            for ranks, by, way in itertools.product(map(int, args.ranks.split(",")), args.by.split(","), args.ways.split(",")):
                row = {"model": model, "precision": precision, "ranks": ranks, "by": by, "parallel": way, "limit_bytes": limit}
                if rows.has(row) or by in MPI and not shutil.which(MPI[by][0]):
                    continue
                if one is None:
                    one, _, why = case.run("tcp", 1, "data", limit)
                    if why:
                        sys.exit(f"{model} in {precision} on one rank: {why}")
                losses, peak, why = case.run(by, ranks, way, limit)
                if why:
                    own = [text for text in why.splitlines() if text.startswith("plimsoll:")]
                    row["refused"] = (own or why.splitlines())[0]
                else:
                    again, _, failed = case.run(by, ranks, way, limit)
                    if failed:
                        row["second_run"] = failed
                    row.update(steps=len(losses), difference=difference(losses, one), same_bits=again == losses, peak_bytes=peak)
                    if args.least:
                        row["least_bytes"], row["least_works"], row["below_refused"] = least(case, by, ranks, way, args.grain)
                rows.add(row)
    shutil.rmtree(args.keras_data, ignore_errors=True)
    bad = sum(not is_well(row) for row in rows.all)
    end = f"{len(rows.all)} rows, {bad} not as wanted, {sum('refused' in row for row in rows.all)} refused"
    print(end)
    if args.out:
        with open(os.path.join(args.out, "table.txt"), "w") as file:
            file.write("\n".join([HEAD, *map(line, rows.all), end]) + "\n")
    sys.exit(1 if bad else 0)

if __name__ == "__main__":
    main()
