//! Training steps of well-known shapes: a forward pass as a list of nodes, and the backward pass that follows from it.

use plimsoll_plan::{Kind, Op, Problem, Tensor, TensorId};

/// One forward op: what it reads (nodes before it), the bytes it makes, and its time.
#[derive(Clone)]
pub struct Node {
    pub reads: Vec<usize>,
    pub bytes: u64,
    pub ns: u64,
}

/// A node of `bytes` bytes and `ns` nanoseconds.
pub fn node(reads: &[usize], bytes: u64, ns: u64) -> Node {
    Node { reads: reads.to_vec(), bytes, ns }
}

/// The step that runs `nodes` forward and then backward. The backward op of a node reads what the node read and made and
/// the gradient of what it made, and makes gradients of what it read; where several meet they are added in place. A node
/// that reads nothing reads the resident input, and its gradient updates a resident.
pub fn training(nodes: &[Node]) -> Problem {
    let mut step = Problem::new();
    let input = step.tensor(Tensor { kind: Kind::Input, ..Tensor::resident("input", 256) });
    let mut values: Vec<TensorId> = Vec::new();
    for (n, node) in nodes.iter().enumerate() {
        let value = step.tensor(Tensor::transient(format!("x{n}"), node.bytes));
        let mut reads: Vec<TensorId> = node.reads.iter().map(|&r| values[r]).collect();
        if reads.is_empty() {
            reads.push(input);
        }
        step.op(Op::new(format!("f{n}"), &reads, &[value], node.ns));
        values.push(value);
    }
    let mut gradients: Vec<Option<TensorId>> = vec![None; nodes.len()];
    for (n, node) in nodes.iter().enumerate().rev() {
        let mut reads: Vec<TensorId> = node.reads.iter().map(|&r| values[r]).collect();
        reads.push(values[n]);
        reads.extend(gradients[n]);
        let made: Vec<TensorId> = node
            .reads
            .iter()
            .map(|&r| step.tensor(Tensor::transient(format!("g{n}to{r}"), nodes[r].bytes)))
            .collect();
        if made.is_empty() {
            let weight = step.tensor(Tensor::resident(format!("w{n}"), 64));
            let mut update = Op::new(format!("u{n}"), &reads, &[], node.ns / 4);
            update.updates.push(weight);
            update.replayable = false;
            step.op(update);
            continue;
        }
        step.op(Op::new(format!("b{n}"), &reads, &made, 2 * node.ns));
        for (&r, g) in node.reads.iter().zip(made) {
            gradients[r] = Some(match gradients[r] {
                None => g,
                Some(sum) => {
                    let next = step.tensor(Tensor::transient(format!("s{n}to{r}"), nodes[r].bytes));
                    let mut add = Op::new(format!("a{n}to{r}"), &[sum, g], &[next], 1 + node.ns / 20);
                    add.in_place.push((sum, next));
                    step.op(add);
                    next
                }
            });
        }
    }
    step
}

/// A plain chain of `length` layers.
pub fn chain(length: usize) -> Problem {
    let layer =
        |n: usize| node(&(0..n).last().into_iter().collect::<Vec<_>>(), 4096, 100 + 10 * (n as u64 % 7));
    training(&(0..length).map(layer).collect::<Vec<_>>())
}

/// Down `depth` levels of two layers each, and up again, with a skip at every level.
pub fn u_net(depth: usize) -> Problem {
    let mut nodes = vec![node(&[], 1 << 16, 100)];
    let mut skips = Vec::new();
    for level in 0..depth {
        let bytes = (1 << 16) >> level;
        for _ in 0..3 {
            nodes.push(node(&[nodes.len() - 1], bytes, 400));
        }
        skips.push(nodes.len() - 1);
        nodes.push(node(&[nodes.len() - 1], bytes / 2, 50));
    }
    for level in (0..depth).rev() {
        let bytes = (1 << 16) >> level;
        let last = nodes.len() - 1;
        nodes.push(node(&[last, skips[level]], bytes, 150));
        for _ in 0..3 {
            nodes.push(node(&[nodes.len() - 1], bytes, 400));
        }
    }
    training(&nodes)
}

/// `steps` steps of a recurrence with two states, each step of six ops, every step also read by a head at the end.
pub fn recurrence(steps: usize) -> Problem {
    let mut nodes = vec![node(&[], 1024, 10), node(&[], 1024, 10), node(&[], 8192, 10)];
    let (mut hidden, mut cell) = (0, 1);
    let mut heads = Vec::new();
    for _ in 0..steps {
        nodes.push(node(&[hidden, 2], 4096, 300));
        let gates = nodes.len() - 1;
        nodes.push(node(&[gates], 4096, 20));
        nodes.push(node(&[gates + 1, cell], 1024, 10));
        cell = gates + 2;
        nodes.push(node(&[cell], 1024, 10));
        nodes.push(node(&[gates + 3, gates + 1], 1024, 10));
        hidden = gates + 4;
        nodes.push(node(&[hidden], 2048, 80));
        heads.push(gates + 5);
    }
    let mut sum = heads[0];
    for &head in &heads[1..] {
        nodes.push(node(&[sum, head], 2048, 10));
        sum = nodes.len() - 1;
    }
    training(&nodes)
}

/// `blocks` blocks of attention and a wide layer, with residual sums.
pub fn transformer(blocks: usize) -> Problem {
    let mut nodes = vec![node(&[], 4096, 50)];
    for _ in 0..blocks {
        let x = nodes.len() - 1;
        nodes.push(node(&[x], 4096, 20));
        let (q, k, v) = (x + 2, x + 3, x + 4);
        (0..3).for_each(|_| nodes.push(node(&[x + 1], 4096, 200)));
        nodes.push(node(&[q, k], 32768, 150));
        nodes.push(node(&[x + 5], 32768, 60));
        nodes.push(node(&[x + 6, v], 4096, 150));
        nodes.push(node(&[x + 7], 4096, 200));
        nodes.push(node(&[x, x + 8], 4096, 10));
        nodes.push(node(&[x + 9], 4096, 20));
        nodes.push(node(&[x + 10], 16384, 800));
        nodes.push(node(&[x + 11], 16384, 30));
        nodes.push(node(&[x + 12], 4096, 800));
        nodes.push(node(&[x + 9, x + 13], 4096, 10));
    }
    training(&nodes)
}

/// `steps` unrolled steps of training an inner model of three layers, whose weights are themselves differentiated.
pub fn unrolled(steps: usize) -> Problem {
    let mut nodes = vec![node(&[], 8192, 10), node(&[], 8192, 10)];
    let (data, mut weight) = (0, 1);
    for _ in 0..steps {
        let first = nodes.len();
        nodes.push(node(&[data, weight], 8192, 300));
        nodes.push(node(&[first], 8192, 20));
        nodes.push(node(&[first + 1, weight], 8192, 300));
        nodes.push(node(&[first + 2], 8192, 20));
        // The inner backward pass, as forward nodes of the outer one.
        nodes.push(node(&[first + 3, first + 2], 8192, 20));
        nodes.push(node(&[first + 4, weight], 8192, 300));
        nodes.push(node(&[first + 4, first + 1], 8192, 300));
        nodes.push(node(&[first + 5, first], 8192, 20));
        nodes.push(node(&[first + 7, data], 8192, 300));
        nodes.push(node(&[first + 6, first + 8], 8192, 10));
        nodes.push(node(&[weight, first + 9], 8192, 10));
        weight = first + 10;
    }
    training(&nodes)
}

/// A binary tree over `leaves` leaves, each of three layers.
pub fn tree(leaves: usize) -> Problem {
    let mut nodes = Vec::new();
    let mut level = Vec::new();
    for _ in 0..leaves {
        nodes.push(node(&[], 2048, 50));
        nodes.push(node(&[nodes.len() - 1], 4096, 200));
        nodes.push(node(&[nodes.len() - 1], 2048, 100));
        level.push(nodes.len() - 1);
    }
    while level.len() > 1 {
        let mut next = Vec::new();
        for pair in level.chunks(2) {
            nodes.push(node(pair, 4096, 200));
            nodes.push(node(&[nodes.len() - 1], 2048, 50));
            next.push(nodes.len() - 1);
        }
        level = next;
    }
    training(&nodes)
}

/// `rounds` rounds in which `width` branches read one tensor and are summed.
pub fn fan_out(rounds: usize, width: usize) -> Problem {
    let mut nodes = vec![node(&[], 4096, 50)];
    for _ in 0..rounds {
        let x = nodes.len() - 1;
        let branches: Vec<usize> = (0..width)
            .map(|b| {
                nodes.push(node(&[x], 4096, 100 + 30 * (b as u64 % 5)));
                nodes.push(node(&[nodes.len() - 1], 4096, 30));
                nodes.len() - 1
            })
            .collect();
        nodes.push(node(&branches, 4096, 40));
    }
    training(&nodes)
}

/// All shapes, with their names, at a size of about a hundred ops.
pub fn small() -> Vec<(&'static str, Problem)> {
    vec![
        ("chain", chain(50)),
        ("u-net", u_net(5)),
        ("recurrence", recurrence(8)),
        ("transformer", transformer(4)),
        ("unrolled", unrolled(4)),
        ("tree", tree(12)),
        ("fan-out", fan_out(3, 6)),
    ]
}
