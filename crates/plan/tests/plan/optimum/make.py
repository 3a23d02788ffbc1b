"""Writes golden.json: small training steps and their exact optima, from the integer program of Checkmate (Jain et al., 2020).

Stage t ends with the first run of op t. R[t,i]: op i runs in stage t. S[t,i]: its result is held into stage t.
F[t,i,k]: the result of i is let go after op k in stage t. Memory is counted before every run. Needs numpy and scipy.
"""
import json
import pathlib
import random

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix


def training(nodes):
    """Ops (reads, bytes, ns) of a forward pass and its backward pass; one op for each gradient."""
    ops = [(list(reads), size, ns) for reads, size, ns in nodes]
    gradient = {}
    for n in reversed(range(len(nodes))):
        reads, size, ns = nodes[n]
        for r in reads:
            needs = sorted(set(reads) | ({gradient[n]} if n in gradient else {n}))
            if r in gradient:
                needs = sorted(set(needs) | {gradient[r]})
            ops.append((needs, nodes[r][1], 2 * ns // len(reads)))
            gradient[r] = len(ops) - 1
    needs = sorted({0} | ({gradient[0]} if 0 in gradient else set()))
    ops.append((needs, 4, nodes[0][2] // 2))
    return ops


def peak(ops):
    """The most that is held without replays."""
    n = len(ops)
    last = list(range(n))
    for k, (reads, _, _) in enumerate(ops):
        for r in reads:
            last[r] = k
    last[n - 1] = n
    return max(sum(ops[i][1] for i in range(k + 1) if last[i] >= k) for k in range(n))


def solve(ops, budget, limit):
    """The least time within budget, None if there is no schedule, 'open' if the solver did not finish."""
    n = len(ops)
    users = [[k for k in range(n) if i in ops[k][0]] for i in range(n)]
    index = {}
    for t in range(n):
        for i in range(t + 1):
            index["R", t, i] = len(index)
        for i in range(t):
            index["S", t, i] = len(index)
        for k in range(t + 1):
            for i in sorted(set(ops[k][0]) | {k}):
                index["F", t, i, k] = len(index)
    index["S", n, n - 1] = len(index)
    size = len(index)
    low, high = np.zeros(size), np.ones(size)
    for t in range(n):
        low[index["R", t, t]] = 1
    low[index["S", n, n - 1]] = 1
    rows, lower, upper = [], [], []

    def add(terms, lo, hi):
        rows.append([(index[name], c) for name, c in terms if name in index])
        lower.append(lo)
        upper.append(hi)

    for t in range(n):
        for i in range(t):
            add([(("S", t, i), 1), (("S", t - 1, i), -1), (("R", t - 1, i), -1)], -np.inf, 0)
        for j in range(t + 1):
            for i in ops[j][0]:
                add([(("R", t, j), 1), (("R", t, i), -1), (("S", t, i), -1)], -np.inf, 0)
        used = [(("S", t, i), ops[i][1]) for i in range(t)]
        for k in range(t + 1):
            used = used + [(("R", t, k), ops[k][1])]
            add(used, -np.inf, budget)
            for i in sorted(set(ops[k][0]) | {k}):
                # Let go only if it ran here, is not held on, and nobody after k in this stage reads it.
                after = [j for j in users[i] if k < j <= t]
                hazards = [(("S", t + 1, i), 1)] + [(("R", t, j), 1) for j in after]
                add([(("F", t, i, k), 1), (("R", t, k), -1)], -np.inf, 0)
                for name, c in hazards:
                    add([(("F", t, i, k), 1), (name, c)], -np.inf, 1)
                # Letting go twice would count twice.
                used = used + [(("F", t, i, k), -ops[i][1])]
        for i in range(t + 1):
            gone = [(("F", t, i, k), 1) for k in range(t + 1)]
            there = [(("S", t, i), -1), (("R", t, i), -1)]
            add(gone + there, -np.inf, 0)
            # Not both held and made again.
            add([(("S", t, i), 1), (("R", t, i), 1)], -np.inf, 1) if i < t else None
    data, r, c = [], [], []
    for k, row in enumerate(rows):
        for column, value in row:
            data.append(value), r.append(k), c.append(column)
    matrix = csr_matrix((data, (r, c)), shape=(len(rows), size))
    cost = np.zeros(size)
    for (name, *at), column in index.items():
        if name == "R":
            cost[column] = ops[at[1]][2]
    found = milp(cost, integrality=np.ones(size), bounds=Bounds(low, high),
                 constraints=LinearConstraint(matrix, lower, upper), options={"time_limit": limit})
    if found.status == 2:
        return None
    return round(found.fun) if found.status == 0 else "open"


def problem(ops):
    """The step in the planner's own text form."""
    def tensor(i, size):
        home = "output" if i == len(ops) - 1 else "transient"
        return {"name": f"t{i}", "bytes": size, "alignment": 1, "home": home, "kind": "activation"}

    def op(i, reads, ns):
        return {"name": f"op{i}", "reads": reads, "writes": [i], "ns": ns, "replayable": True}
    return {"tensors": [tensor(i, o[1]) for i, o in enumerate(ops)],
            "ops": [op(i, o[0], o[2]) for i, o in enumerate(ops)],
            "scratch_alignment": 1}


def steps():
    chance = random.Random(7)
    pick = lambda low, high: chance.randint(low, high)
    yield "even chain", training([([n - 1] if n else [], 10, 10) for n in range(8)])
    yield "uneven chain", training([([n - 1] if n else [], pick(5, 40), pick(5, 40)) for n in range(8)])
    yield "narrowing chain", training([([n - 1] if n else [], 64 >> n, 10 + 5 * n) for n in range(8)])
    yield "residual", training([([], 20, 10), ([0], 20, 30), ([1], 20, 5), ([0, 2], 20, 5), ([3], 20, 30), ([4], 10, 9)])
    yield "skip over all", training([([], 30, 10), ([0], 20, 30), ([1], 10, 30), ([2], 20, 30), ([3, 0], 30, 10)])
    yield "fan-out", training([([], 16, 20), ([0], 16, 20), ([0], 16, 10), ([0], 16, 30), ([1, 2, 3], 8, 5)])
    yield "fan-in", training([([], 12, 8), ([0], 24, 25), ([0], 12, 15), ([1, 2], 12, 10), ([3, 1], 12, 20)])
    yield "recurrence", training([([], 8, 5), ([0], 32, 30), ([1, 0], 8, 5), ([2], 32, 30), ([3, 2], 8, 5)])
    for k in range(6):
        nodes = [([], pick(4, 40), pick(3, 40))]
        while len(nodes) < 6:
            n = len(nodes)
            reads = {n - 1}
            if pick(0, 3) == 0 and n > 1 and len(nodes) < 5:
                reads.add(pick(0, n - 2))
            nodes.append((sorted(reads), pick(4, 40), pick(3, 40)))
        yield f"random {k}", training(nodes)


def main():
    cases = []
    for name, ops in steps():
        assert len(ops) <= 17, (name, len(ops))
        top = peak(ops)
        budgets = []
        for part in range(15, 3, -1):
            budget = top * part // 16
            ns = solve(ops, budget, 60)
            print(name, len(ops), "ops", budget, "of", top, ns, flush=True)
            if ns != "open":
                budgets.append({"bytes": budget, "ns": ns})
            if ns is None:
                break
        cases.append({"name": name, "problem": problem(ops), "budgets": budgets})
    target = pathlib.Path(__file__).parent / "golden.json"
    target.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


main()
