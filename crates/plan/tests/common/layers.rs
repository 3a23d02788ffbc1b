//! Training steps of many equal layers for tests.

use plimsoll_plan::{Kind, Op, Problem, Tensor, TensorId};

/// A step of `layers` equal layers, built like those of a language model: forward, backward, an update for each weight.
pub fn layered_step(layers: usize) -> Problem {
    let mut step = Problem::new();
    let tokens = step.tensor(Tensor { kind: Kind::Input, ..Tensor::resident("tokens", 64) });
    let (width, tall) = (64 * 1024u64, 256 * 1024u64);
    // What each op of a layer reads (ops of the layer by number, -1 the layer's input), its bytes, its time, whether it
    // has a weight, and whether its backward pass reads its own result (else what it read).
    let recipe: [(&[i32], u64, u64, bool, bool); 12] = [
        (&[-1], width, 40, true, false),
        (&[0], 3 * width, 600, true, false),
        (&[1], tall, 300, false, false),
        (&[2], tall, 120, false, true),
        (&[3, 1], width, 300, false, false),
        (&[4], width, 200, true, false),
        (&[5, -1], width, 30, false, false),
        (&[6], width, 40, true, false),
        (&[7], 4 * width, 800, true, false),
        (&[8], 4 * width, 100, false, false),
        (&[9], width, 800, true, false),
        (&[10, 6], width, 30, false, false),
    ];
    let mut input = step.tensor(Tensor::transient("embedded", width));
    step.op(Op::new("embed", &[tokens], &[input], 50));
    let mut made: Vec<Vec<TensorId>> = Vec::new();
    let mut weights: Vec<Vec<Option<TensorId>>> = Vec::new();
    let mut inputs = Vec::new();
    for layer in 0..layers {
        let (mut outs, mut own): (Vec<TensorId>, Vec<Option<TensorId>>) = (Vec::new(), Vec::new());
        for (k, (reads, bytes, ns, weighted, _)) in recipe.iter().enumerate() {
            let out = step.tensor(Tensor::transient(format!("layer{layer}.{k}"), *bytes));
            let weight = weighted.then(|| step.tensor(Tensor::resident(format!("weight{layer}.{k}"), 4096)));
            let source = |r: &i32| if *r < 0 { input } else { outs[*r as usize] };
            let reads: Vec<TensorId> = reads.iter().map(source).chain(weight).collect();
            step.op(Op::new(format!("layer{layer}.{k}"), &reads, &[out], *ns));
            outs.push(out);
            own.push(weight);
        }
        inputs.push(input);
        input = outs[11];
        made.push(outs);
        weights.push(own);
    }
    let loss = step.tensor(Tensor::output("loss", 4));
    step.op(Op::new("loss", &[input], &[loss], 50));
    let mut above = step.tensor(Tensor::transient("gradient", width));
    step.op(Op::new("loss back", &[input, loss], &[above], 50));
    for layer in (0..layers).rev() {
        // The sum of gradients that has reached each op's result, and the layer's input last.
        let mut reached: Vec<Option<TensorId>> = vec![None; 13];
        reached[11] = Some(above);
        for (k, (reads, _, ns, weighted, own)) in recipe.iter().enumerate().rev() {
            let Some(gradient) = reached[k] else { continue };
            let kept = |r: &i32| if *r < 0 { inputs[layer] } else { made[layer][*r as usize] };
            let mut needs: Vec<TensorId> = vec![gradient];
            if reads.len() == 1 || !matches!(k, 6 | 11) {
                if *own { needs.push(made[layer][k]) } else { needs.extend(reads.iter().map(kept)) }
            }
            needs.extend(weights[layer][k]);
            for r in reads.iter() {
                let slot = if *r < 0 { 12 } else { *r as usize };
                let bytes = step.tensors[kept(r).index()].bytes;
                let next = step.tensor(Tensor::transient(format!("gradient{layer}.{k}.{r}"), bytes));
                let reads: Vec<TensorId> = needs.iter().copied().chain(reached[slot]).collect();
                let mut op = Op::new(format!("back{layer}.{k}.{r}"), &reads, &[next], *ns);
                op.in_place = reached[slot].map(|sum| (sum, next)).into_iter().collect();
                step.op(op);
                reached[slot] = Some(next);
            }
            if *weighted {
                let share = step.tensor(Tensor::transient(format!("share{layer}.{k}"), 4096));
                step.op(Op::new(format!("share{layer}.{k}"), &needs, &[share], *ns));
                let mut update = Op::new(format!("update{layer}.{k}"), &[share], &[], 10);
                update.updates = weights[layer][k].into_iter().collect();
                update.replayable = false;
                step.op(update);
            }
        }
        above = reached[12].unwrap_or(above);
    }
    step
}
