//! Dense layers and embeddings.

use plimsoll_graph::{DType, GatherOps, TensorOps, Type};
use plimsoll_nn::Init;

use super::lora::{self, Lora};
use super::{Table, einsum, kernel_and_bias, trained};
use crate::error::refuse;
use crate::layer::{Made, Masks};

pub(crate) const TABLE: Table = &[
    ("Dense", |s| {
        let units = s.units("units")?;
        let bias = s.flag("use_bias", true)?;
        let activation = s.activation("activation")?;
        let init = s.init("kernel_initializer", 64, units);
        let (mut weights, bias_init) = (kernel_and_bias(s, bias)?, s.init("bias_initializer", units, units));
        let lora = Lora::read(s, &mut weights)?;
        Ok(Made::weighted(weights, move |cx, x| {
            let Some(&width) = x.shape().last().filter(|_| x.shape().rank() > 1) else {
                return Err(refuse(format!("gives {} to a dense layer", x.ty())));
            };
            let w = lora::master(lora, cx, "kernel", [width, units], init)?.cast(cx.dtype())?;
            let b = cx.optional(bias, "bias", [units], bias_init)?;
            let y = x.matmul_with(&w, b.as_ref(), false, false)?;
            cx.finish(&activation, &y)
        })
        .ends(&activation)
        .masks(Masks::Pass))
    }),
    ("EinsumDense", einsum::make),
    ("Embedding", |s| {
        let (rows, width) = (s.units("input_dim")?, s.units("output_dim")?);
        let masked = s.flag("mask_zero", false)?;
        let init = if s.is_null("embeddings_initializer") {
            Init::Uniform(0.05)
        } else {
            s.init("embeddings_initializer", rows, width)
        };
        let mut weights = vec![trained(s, "embeddings", "embeddings_regularizer")?];
        let lora = Lora::read(s, &mut weights)?;
        Ok(Made::weighted(weights, move |cx, x| {
            let x = if x.dtype().is_index() { x.clone() } else { x.cast(DType::I64)? };
            if masked {
                let zero = x.full_like(Type::new(x.dtype(), []), 0.0)?;
                cx.pass.mask = Some(x.not_equal(&zero)?);
            }
            let dtype = cx.dtype();
            lora::master(lora, cx, "embeddings", [rows, width], init)?.embedding(&x)?.cast(dtype)
        })
        .masks(Masks::Read))
    }),
    ("ReversibleEmbedding", |s| {
        let (rows, width) = (s.units("input_dim")?, s.units("output_dim")?);
        let (masked, is_tied) = (s.flag("mask_zero", false)?, s.flag("tie_weights", true)?);
        let cap = if s.is_null("logit_soft_cap") { None } else { Some(s.positive("logit_soft_cap")?) };
        let init = s.init("embeddings_initializer", rows, width);
        let mut weights = vec![trained(s, "embeddings", "embeddings_regularizer")?];
        if !is_tied {
            weights.push(trained(s, "reverse_embeddings", "reverse_embeddings_regularizer")?);
        }
        Ok(Made::with(weights, move |cx, args| {
            let Some(x) = args.tensor(0, "inputs")? else {
                return Err(refuse("gives no tensor to an embedding"));
            };
            let dtype = cx.dtype();
            if !args.flag(1, "reverse")? {
                let x = if x.dtype().is_index() { x.clone() } else { x.cast(DType::I64)? };
                if masked {
                    let zero = x.full_like(Type::new(x.dtype(), []), 0.0)?;
                    cx.pass.mask = Some(x.not_equal(&zero)?);
                }
                return Ok(vec![cx.master("embeddings", [rows, width], init)?.embedding(&x)?.cast(dtype)?]);
            }
            let logits = match is_tied {
                true => x.matmul_with(&cx.param("embeddings", [rows, width], init)?, None, false, true)?,
                false => x.matmul(&cx.param("reverse_embeddings", [width, rows], init)?)?,
            };
            Ok(vec![match cap {
                Some(cap) => logits.mul_scalar(1.0 / cap)?.tanh()?.mul_scalar(cap)?,
                None => logits,
            }])
        })
        .kwargs(&["reverse"])
        .masks(Masks::Read))
    }),
    ("LayerScale", |s| {
        let width = s.units("projection_dim")?;
        let start = Init::Constant(s.number_or("init_values", 1e-6)?);
        let weights = vec![trained(s, "gamma", "gamma_regularizer")?];
        Ok(Made::weighted(weights, move |cx, x| x.mul(&cx.param("gamma", [width], start)?)))
    }),
];
