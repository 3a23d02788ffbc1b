//! Convolutional long short-term memories over sequences of lines, images and volumes, channels last.

use plimsoll_graph::{ConvGeometry, ConvOps, Padding, TensorOps, Type, VolumeOps};
use plimsoll_nn::Init;
use plimsoll_run::{Result as RunResult, Tensor};

use super::{Activation, Table, merge, recurrent, trained};
use crate::error::{Result, refuse};
use crate::layer::{Cx, Made, Masks, Weight};
use crate::settings::Settings;

pub(crate) const TABLE: Table =
    &[("ConvLSTM1D", |s| read::<1>(s)), ("ConvLSTM2D", |s| read::<2>(s)), ("ConvLSTM3D", |s| read::<3>(s))];

/// The name of the cell, which holds the weights.
const CELL: &str = "conv_lstm_cell";
/// The longest sequence: each step is a dozen ops.
const MOST_STEPS: usize = 1024;

struct ConvLstm<const AXES: usize> {
    filters: usize,
    window: [usize; AXES],
    stride: [usize; AXES],
    dilation: [usize; AXES],
    is_same: bool,
    activation: Activation,
    gate: Activation,
    bias: bool,
    backwards: bool,
    gives_all: bool,
    gives_state: bool,
    init: Init,
}

fn read<const AXES: usize>(s: &Settings<'_>) -> Result<Made> {
    s.channels_last()?;
    for key in ["dropout", "recurrent_dropout"] {
        if s.rate(key)? != 0.0 {
            return Err(s.wrong(key, "this is not supported here"));
        }
    }
    if s.flag("stateful", false)? {
        return Err(s.wrong("stateful", "a state that outlives the batch is not supported"));
    }
    let filters = s.units("filters")?;
    let window: [usize; AXES] = s.extents("kernel_size", 1)?;
    let area: usize = window.iter().product();
    let bias = s.flag("use_bias", true)?;
    let layer = ConvLstm {
        filters,
        window,
        stride: s.extents("strides", 1)?,
        dilation: s.extents("dilation_rate", 1)?,
        is_same: s.padding::<AXES>()? == Padding::Same,
        activation: s.activation("activation")?,
        gate: s.activation("recurrent_activation")?,
        bias,
        backwards: s.flag("go_backwards", false)?,
        gives_all: s.flag("return_sequences", false)?,
        gives_state: s.flag("return_state", false)?,
        init: s.init("kernel_initializer", area * 16, area * filters),
    };
    let mut weights: Vec<Weight> = vec![
        trained(s, "kernel", "kernel_regularizer")?,
        trained(s, "recurrent_kernel", "recurrent_regularizer")?,
    ];
    if bias {
        weights.push(trained(s, "bias", "bias_regularizer")?);
    }
    for weight in &mut weights {
        (weight.holder, weight.name) = ("cell".into(), format!("{CELL}/{}", weight.name));
    }
    Ok(Made::with(weights, move |cx, args| layer.run(cx, args.one()?)).masks(Masks::Refuse))
}

impl<const AXES: usize> ConvLstm<AXES> {
    fn run(&self, cx: &mut Cx<'_>, x: &Tensor) -> RunResult<Vec<Tensor>> {
        if x.shape().rank() != AXES + 3 || x.shape()[1] > MOST_STEPS {
            return Err(refuse(format!("gives {} to a layer of sequences over {AXES} axes", x.ty())));
        }
        let (n, steps, channels) = (x.shape()[0], x.shape()[1], x.shape()[AXES + 2]);
        let columns = 4 * self.filters;
        let shape =
            |last: usize| -> Vec<usize> { self.window.iter().copied().chain([last, columns]).collect() };
        let (w, u, b) = cx.scope(CELL, |cx| {
            Ok((
                cx.param("kernel", &shape(channels)[..], self.init)?,
                cx.param("recurrent_kernel", &shape(self.filters)[..], self.init)?,
                cx.optional(self.bias, "bias", [columns], Init::Constant(0.0))?,
            ))
        })?;
        let x = if self.backwards { recurrent::reversed(x)? } else { x.clone() };
        // The inputs' part of all steps is one convolution.
        let folded: Vec<usize> = std::iter::once(n * steps).chain(x.shape()[2..].iter().copied()).collect();
        let inputs =
            conv(&x.reshape(&folded[..])?, &w, b.as_ref(), self.stride, self.is_same, self.dilation)?;
        let plane: Vec<usize> = inputs.shape()[1..AXES + 1].to_vec();
        let row = |last: usize, head: &[usize]| -> Vec<usize> {
            head.iter().chain(&plane).copied().chain([last]).collect()
        };
        let inputs = inputs.reshape(&row(columns, &[n, steps])[..])?;
        let zeros = x.full_like(Type::new(x.dtype(), &row(self.filters, &[n])[..]), 0.0)?;
        let (mut h, mut c) = (zeros.clone(), zeros);
        let mut outputs = Vec::with_capacity(steps);
        for t in 0..steps {
            let own = inputs.narrow(1, t, t + 1)?.reshape(&row(columns, &[n])[..])?;
            let z =
                own.add(&conv(&h, &u, None, [1; AXES], true, [1; AXES])?)?.split(-1, &[self.filters; 4])?;
            let (i, f) = (self.gate.apply(&z[0])?, self.gate.apply(&z[1])?);
            c = f.mul(&c)?.add(&i.mul(&self.activation.apply(&z[2])?)?)?;
            h = self.gate.apply(&z[3])?.mul(&self.activation.apply(&c)?)?;
            outputs.push(h.clone());
        }
        let output = match self.gives_all {
            true => {
                let rows = outputs
                    .iter()
                    .map(|y| y.reshape(&row(self.filters, &[n, 1])[..]))
                    .collect::<RunResult<Vec<_>>>()?;
                merge::concat(&rows.iter().collect::<Vec<_>>(), 1)?
            }
            false => h.clone(),
        };
        Ok(if self.gives_state { vec![output, h, c] } else { vec![output] })
    }
}

/// A convolution over one, two or three axes.
fn conv<const AXES: usize>(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    stride: [usize; AXES],
    is_same: bool,
    dilation: [usize; AXES],
) -> RunResult<Tensor> {
    match (&stride[..], &dilation[..]) {
        (&[stride], &[dilation]) => {
            let pad = if is_same { Padding::Same } else { Padding::Valid };
            x.conv1d(w, bias, ConvGeometry { stride: [stride], pad, dilation: [dilation], groups: 1 })
        }
        (&[down, right], &[high, wide]) => {
            let pad = if is_same { Padding::Same } else { Padding::Valid };
            x.conv2d(w, bias, ConvGeometry { stride: [down, right], pad, dilation: [high, wide], groups: 1 })
        }
        (&[deep, down, right], &[far, high, wide]) => {
            let pad = if is_same { Padding::Same } else { Padding::Valid };
            let geometry =
                ConvGeometry { stride: [deep, down, right], pad, dilation: [far, high, wide], groups: 1 };
            x.conv3d(w, bias, geometry)
        }
        _ => Err(refuse("convolves over an unknown number of axes")),
    }
}
