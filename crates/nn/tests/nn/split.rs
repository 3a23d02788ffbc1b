//! A batch that is run in pieces, each weighted by its samples, has the loss and the gradient of the whole: masks,
//! losses and layers look at a sample's own index and nothing else.

use crate::common::{labels, uniform};
use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_nn::{
    Loss, Net, Recurrent, binary_cross_entropy, dice, huber, mae, mse, smooth_cross_entropy,
    softmax_cross_entropy,
};
use plimsoll_run::{Result, Tape, Tensor};

fn network(net: &mut Net, x: &[Tensor]) -> Result<Tensor> {
    let x = net.gru("gru", &x[0], Recurrent::all(8))?;
    let x = net.spatial_dropout("channels", &x, 0.3)?;
    let x = net.dense("hidden", &x, 8, true)?.relu()?;
    let x = net.dropout("elements", &x, 0.3)?;
    net.dense("out", &x, 3, true)
}

/// Loss and gradients of samples `start..end` of a batch at a step.
fn piece(loss: &dyn Loss, x: &Tensor, y: &Tensor, start: usize, end: usize) -> Vec<Vec<f64>> {
    let (x, y) = (x.narrow(0, start, end).unwrap(), y.narrow(0, start, end).unwrap());
    let params = Net::discover(&[x.ty().clone()], &network).unwrap();
    let values: Vec<Tensor> =
        params.iter().enumerate().map(|(i, p)| uniform(i as u64 + 1, &p.ty, 0.5)).collect();
    let tape = Tape::new();
    let wrt: Vec<&Tensor> = values.iter().collect();
    wrt.iter().for_each(|w| tape.watch(w).unwrap());
    let key = Tensor::from_slice(&[7, 3, start as i64], [3]).unwrap();
    let mut net = Net::bound(&params, &values, true).key(key);
    let output = network(&mut net, std::slice::from_ref(&x)).unwrap();
    let loss = loss.loss(&[output], &[y]).unwrap();
    let grads = tape.gradient(&loss, &wrt).unwrap();
    std::iter::once(&loss).chain(&grads).map(|t| t.to_f64().unwrap()).collect()
}

#[test]
fn pieces_weighted_by_samples_give_the_gradient_of_the_batch() {
    let (n, t) = (7, 4);
    let x = uniform(1000, &Type::new(DType::F32, [n, t, 5]), 1.7);
    let classes = labels(2000, &Type::new(DType::I64, [n, t]), 3);
    let targets = uniform(2001, &Type::new(DType::F32, [n, t, 3]), 0.5).add_scalar(0.5).unwrap();
    let losses: [(&str, Box<dyn Loss>, &Tensor); 7] = [
        ("softmax_cross_entropy", Box::new(softmax_cross_entropy), &classes),
        ("smooth_cross_entropy", Box::new(smooth_cross_entropy(0.1)), &classes),
        ("binary_cross_entropy", Box::new(binary_cross_entropy), &targets),
        ("mse", Box::new(mse), &targets),
        ("mae", Box::new(mae), &targets),
        ("huber", Box::new(huber(0.4)), &targets),
        ("dice", Box::new(dice), &targets),
    ];
    for (name, loss, y) in losses {
        let whole = piece(&*loss, &x, y, 0, n);
        let pieces = [(0, 3), (3, 6), (6, 7)].map(|(start, end)| {
            let weight = (end - start) as f64 / n as f64;
            (weight, piece(&*loss, &x, y, start, end))
        });
        for (i, values) in whole.iter().enumerate() {
            for (j, &value) in values.iter().enumerate() {
                let sum: f64 = pieces.iter().map(|(weight, piece)| weight * piece[i][j]).sum();
                assert!((sum - value).abs() < 1e-6, "{name} tensor {i} element {j}: {sum}, whole {value}");
            }
        }
    }
}
