//! What layer norm and group norm have in common: γ (x - mean) rstd + β, where only the elements that share a statistic differ.

/// Writes a norm and its gradient, which differ from those of others in the file's `parts`, `leading`, `view`, `result`,
/// `check_dy`, `forward_examples` and `backward_examples` alone. `$sets` is the attribute that says which elements share a statistic, `$to` one that says
/// in which type the result is written.
macro_rules! norm_with_mean {
    (
        $(#[doc = $about:literal])+ $norm:ident = $name:literal,
        $(#[doc = $about_grad:literal])+ $grad:ident = $grad_name:literal,
        $(#[doc = $about_sets:literal])+ $sets:ident
        $(, $(#[doc = $about_to:literal])+ $to:ident)?
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $norm {
            /// ε, added to the variance.
            pub eps: Scalar,
            $(#[doc = $about_sets])+
            pub $sets: usize,
            $($(#[doc = $about_to])+ pub $to: Option<DType>,)?
        }

        $(#[doc = $about_grad])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $grad {
            $(#[doc = $about_sets])+
            pub $sets: usize,
        }

        /// The shapes of γ and of the statistics, or what does not fit.
        fn checked_parts(x: &Type, $sets: usize) -> Result<(Shape, Shape), String> {
            ops::float(x)?;
            let parts = parts(x, $sets)?;
            view(&x.shape, $sets).check(x)?;
            Ok(parts)
        }

        impl Rule for $norm {
            const NAME: &'static str = $name;

            fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
                let [x, gamma, beta] = ops::arity(inputs)?;
                let (scale, stats) = checked_parts(x, self.$sets)?;
                check_wide("gamma and beta", x, &scale, &[gamma, beta])?;
                let stats = Type::new(x.dtype.accumulator(), stats);
                Ok(smallvec![result(self, x)?, stats.clone(), stats])
            }

            fn keeps_apart(&self, along: &Along<'_>) -> bool {
                along.operand == 0 && along.axis < leading(along.input(), self.$sets)
            }

            const IN_PLACE: &'static [(usize, usize)] = &[(0, 0)];

            fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
                forward_cost(inputs, outputs)
            }

            const KEEP: Keep = Keep::both(0b11, 0b110);

            fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
                let (mean, rstd) = (&at.output(1)?, &at.output(2)?);
                let op = $grad { $sets: self.$sets };
                let grads = at.push(op, &[&at.input(0)?, &at.input(1)?, mean, rstd, &at.grad(0)?])?;
                let (mean, dmean, drstd) = (Some(mean), at.try_grad(1), at.try_grad(2));
                let stats = Statistics { mean, rstd, dmean, dvar: None, drstd };
                let view = view(&at.input_type(0).shape, self.$sets);
                let dx = view.statistics_part(at, grads[0].clone(), stats)?;
                Ok(vec![Some(dx), Some(grads[1].clone()), Some(grads[2].clone())])
            }

            fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
                let view = view(&inputs[0].shape, self.$sets);
                let f = view.forward(inputs[0], inputs[1], Some(inputs[2]), self.eps);
                vec![shaped(f.y, &outputs[0]), shaped(f.mean, &outputs[1]), shaped(f.rstd, &outputs[2])]
            }

            fn examples(dice: &mut Dice) -> Vec<Example> {
                let example = |(op, x, scale): ($norm, Type, Type)| {
                    Example::new(op, [x, scale.clone(), scale].map(|ty| (ty, Domain::Normal)).into())
                        .wide(0b110)
                };
                forward_examples(dice).into_iter().map(example).collect()
            }
        }

        impl Rule for $grad {
            const NAME: &'static str = $grad_name;

            fn infer(&self, inputs: &[&Type]) -> Result<Types, String> {
                let [x, gamma, mean, rstd, dy] = ops::arity(inputs)?;
                let (scale, stats) = checked_parts(x, self.$sets)?;
                check_wide("gamma", x, &scale, &[gamma])?;
                check_wide("mean and rstd", x, &stats, &[mean, rstd])?;
                check_dy(x, dy)?;
                Ok(smallvec![x.clone(), gamma.clone(), gamma.clone()])
            }

            const IN_PLACE: &'static [(usize, usize)] = &[(0, 4), (0, 0)];

            fn cost(&self, inputs: &[&Type], outputs: &[&Type]) -> Cost {
                backward_cost(inputs, outputs)
            }

            const KEEP: Keep = Keep::inputs(0b11111);

            fn gradient(&self, at: &Backward<'_>) -> Result<Vec<Option<Sym>>> {
                let view = view(&at.input_type(0).shape, self.$sets);
                through(at, |i| Ok(view.backward_ops(&i[0], &i[1], Some(&i[2]), &i[3], &i[4])?.into()))
            }

            fn reference(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
                let [x, gamma, mean, rstd, dy] = [0, 1, 2, 3, 4].map(|i| inputs[i]);
                let grads = view(&x.shape, self.$sets).backward(x, gamma, Some(mean), rstd, dy);
                grads.into_iter().zip(outputs).map(|(g, ty)| shaped(g, ty)).collect()
            }

            fn examples(dice: &mut Dice) -> Vec<Example> {
                let example = |(op, x, scale, stats): ($grad, Type, Type, Type)| {
                    let normal = |ty: Type| (ty, Domain::Normal);
                    let rstd = (stats.clone(), Domain::Positive);
                    let inputs = vec![normal(x.clone()), normal(scale), normal(stats), rstd, normal(x)];
                    Example::new(op, inputs).wide(0b1110)
                };
                backward_examples(dice).into_iter().map(example).collect()
            }
        }
    };
}
pub(super) use norm_with_mean;
