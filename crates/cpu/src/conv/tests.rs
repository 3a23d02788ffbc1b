//! Convolutions of odd shapes against plain loops, on every instruction set, for 1, 2 and 3 threads.

use super::*;
use crate::gemm::{Activation, Epilogue, Scalar};
use crate::isa::Isa;
use crate::pool::Pool;
use half::{bf16, f16};

/// Small whole numbers, so that sums are exact in any order and in every storage type.
fn numbers<T: Scalar>(len: usize, seed: usize) -> Vec<T> {
    (0..len).map(|i| T::from_f32(((i * 7919 + seed * 104_729) % 7) as f32 - 3.0)).collect()
}

/// Calls `visit(input index, filter index, output index)` for every product of the convolution.
fn visit_all(s: &ConvShape, mut visit: impl FnMut(usize, usize, usize)) {
    let (gi, go) = (s.in_c / s.groups, s.out_c / s.groups);
    for n in 0..s.batch {
        for oy in 0..s.out_h() {
            for ox in 0..s.out_w() {
                for ky in 0..s.kernel_h {
                    for kx in 0..s.kernel_w {
                        let iy = (oy * s.stride_h + ky * s.dilation_h) as isize - s.pad_h.0 as isize;
                        let ix = (ox * s.stride_w + kx * s.dilation_w) as isize - s.pad_w.0 as isize;
                        if iy < 0 || ix < 0 || iy >= s.in_h as isize || ix >= s.in_w as isize {
                            continue;
                        }
                        for co in 0..s.out_c {
                            for ci in 0..gi {
                                let i = ((n * s.in_h + iy as usize) * s.in_w + ix as usize) * s.in_c
                                    + co / go * gi
                                    + ci;
                                let f = ((ky * s.kernel_w + kx) * gi + ci) * s.out_c + co;
                                let o = ((n * s.out_h() + oy) * s.out_w() + ox) * s.out_c + co;
                                visit(i, f, o);
                            }
                        }
                    }
                }
            }
        }
    }
}

fn finish(sums: &mut [f32], old: &[f32], channels: usize, epilogue: &Epilogue<'_>) {
    for (i, sum) in sums.iter_mut().enumerate() {
        *sum += if epilogue.accumulate { old[i] } else { 0.0 };
        *sum += epilogue.bias.map_or(0.0, |bias| bias[i % channels]);
        if epilogue.activation == Activation::Relu {
            *sum = sum.max(0.0);
        }
        if let Some(hook) = epilogue.hook {
            hook.apply(i / channels, i % channels, std::slice::from_mut(sum));
        }
    }
}

/// A pass that writes its result and uses scratch.
type Run<'a, O> = dyn Fn(&mut [O], &mut [u8]) + 'a;

fn check<T: Scalar, O: Scalar>(s: &ConvShape) {
    let input: Vec<T> = numbers(s.input_len(), 1);
    let filter: Vec<T> = numbers(s.filter_len(), 2);
    let grad: Vec<T> = numbers(s.output_len(), 3);
    let (mut y, mut dx, mut df) = (vec![0f32; grad.len()], vec![0f32; input.len()], vec![0f32; filter.len()]);
    visit_all(s, |i, f, o| {
        y[o] += input[i].to_f32() * filter[f].to_f32();
        dx[i] += grad[o].to_f32() * filter[f].to_f32();
        df[f] += grad[o].to_f32() * input[i].to_f32();
    });
    let bias: Vec<f32> = numbers(s.in_c.max(s.out_c), 4);
    let hook = |row: usize, col: usize, values: &mut [f32]| {
        values.iter_mut().enumerate().for_each(|(j, x)| *x += (row * 3 + col + j) as f32 % 5.0);
    };
    let epilogues = [
        Epilogue::NONE,
        Epilogue { bias: Some(&bias), activation: Activation::Relu, ..Epilogue::NONE },
        Epilogue { bias: Some(&bias), accumulate: true, hook: Some(&hook), ..Epilogue::NONE },
    ];
    let stored = |x: &[f32]| x.iter().map(|&x| O::from_f32(x).to_f32()).collect::<Vec<f32>>();
    let read = |x: &[O]| x.iter().map(|x| x.to_f32()).collect::<Vec<f32>>();
    for isa in Isa::available() {
        for threads in 1..=3 {
            let pool = Pool::new(threads);
            let say = format!("{isa} {threads} threads {s:?}");
            // What is computed over old numbers in dirty scratch is what is expected, to the last bit.
            let check =
                |what: &str, plain: &[f32], channels, epilogue: &Epilogue<'_>, bytes, run: &Run<'_, O>| {
                    let mut out: Vec<O> = numbers(plain.len(), 5);
                    let mut expected = plain.to_vec();
                    finish(&mut expected, &read(&out), channels, epilogue);
                    run(&mut out, &mut vec![0xff; bytes]);
                    assert_eq!(read(&out), stored(&expected), "{what} {say}");
                };
            for epilogue in &epilogues {
                let bytes = forward_scratch_bytes::<O>(isa, s, threads);
                check("forward", &y, s.out_c, epilogue, bytes, &|out, scratch| {
                    forward(&pool, isa, s, &input, &filter, out, epilogue, scratch);
                });
                let bytes = data_grad_scratch_bytes::<O>(isa, s, threads);
                check("data gradient", &dx, s.in_c, epilogue, bytes, &|out, scratch| {
                    data_grad(&pool, isa, s, &grad, &filter, out, epilogue, scratch);
                });
            }
            for accumulate in [false, true] {
                let bytes = filter_grad_scratch_bytes::<O>(isa, s, threads);
                let epilogue = Epilogue { accumulate, ..Epilogue::NONE };
                check("filter gradient", &df, 1, &epilogue, bytes, &|out, scratch| {
                    filter_grad(&pool, isa, s, &input, &grad, out, accumulate, scratch);
                });
            }
        }
    }
}

fn shapes() -> Vec<ConvShape> {
    let new = ConvShape::new;
    vec![
        new([1, 1, 1, 1], [1, 1], 1),
        ConvShape { pad_h: (1, 1), pad_w: (1, 1), ..new([2, 7, 9, 3], [3, 3], 8) },
        ConvShape { pad_h: (1, 1), pad_w: (1, 1), ..new([1, 6, 5, 17], [3, 3], 33) },
        ConvShape { pad_h: (0, 2), pad_w: (2, 1), ..new([1, 5, 6, 4], [2, 4], 5) },
        ConvShape { pad_h: (1, 1), pad_w: (1, 1), stride_h: 2, stride_w: 2, ..new([2, 8, 8, 5], [3, 3], 7) },
        ConvShape { stride_h: 3, stride_w: 2, pad_w: (1, 0), ..new([1, 10, 9, 2], [2, 3], 4) },
        ConvShape {
            dilation_h: 2,
            dilation_w: 3,
            pad_h: (2, 2),
            pad_w: (3, 3),
            ..new([1, 9, 9, 3], [3, 3], 6)
        },
        ConvShape { dilation_w: 2, stride_w: 2, stride_h: 2, pad_w: (2, 2), ..new([1, 7, 11, 3], [3, 3], 4) },
        ConvShape { stride_h: 2, stride_w: 2, ..new([2, 6, 6, 9], [1, 1], 11) },
        ConvShape { stride_h: 2, stride_w: 2, ..new([2, 8, 6, 12], [2, 2], 20) },
        ConvShape { stride_h: 4, stride_w: 4, ..new([1, 9, 10, 3], [2, 3], 4) },
        new([2, 5, 4, 40], [1, 1], 2),
        ConvShape { groups: 2, pad_h: (1, 1), pad_w: (1, 1), ..new([1, 5, 5, 6], [3, 3], 8) },
        ConvShape { groups: 3, ..new([2, 4, 4, 9], [1, 1], 6) },
        ConvShape { groups: 4, stride_h: 2, stride_w: 2, pad_w: (1, 1), ..new([1, 6, 6, 4], [2, 3], 8) },
        ConvShape { groups: 70, pad_h: (1, 1), pad_w: (1, 1), ..new([1, 4, 5, 70], [3, 3], 70) },
        ConvShape { groups: 5, stride_h: 2, stride_w: 2, pad_h: (1, 0), ..new([2, 7, 6, 5], [3, 3], 5) },
        ConvShape { pad_w: (2, 2), dilation_w: 2, ..new([3, 1, 20, 6], [1, 3], 10) },
        ConvShape { pad_h: (3, 3), pad_w: (3, 3), ..new([1, 2, 2, 2], [5, 5], 3) },
        new([1, 2, 2, 3], [3, 3], 4),
        ConvShape { pad_h: (1, 1), pad_w: (1, 1), ..new([3, 5, 15, 9], [3, 3], 18) },
        ConvShape { pad_h: (2, 0), pad_w: (0, 2), stride_h: 2, stride_w: 2, ..new([2, 9, 31, 8], [3, 4], 9) },
        ConvShape {
            pad_h: (2, 2),
            pad_w: (2, 2),
            dilation_h: 2,
            dilation_w: 2,
            ..new([2, 6, 17, 9], [3, 3], 8)
        },
        ConvShape { groups: 2, pad_w: (1, 1), stride_h: 3, ..new([2, 8, 14, 20], [2, 3], 18) },
        ConvShape { stride_h: 2, stride_w: 2, ..new([1, 6, 50, 8], [2, 2], 8) },
        ConvShape { pad_h: (4, 0), pad_w: (9, 0), stride_w: 2, ..new([1, 3, 18, 8], [2, 3], 8) },
        ConvShape { pad_h: (1, 1), pad_w: (1, 1), ..new([1, 6, 6, 40], [3, 3], 20) },
    ]
}

#[test]
fn all_three_passes_are_exact_in_f32() {
    shapes().iter().for_each(check::<f32, f32>);
}

#[test]
fn all_three_passes_are_exact_from_sixteen_bits() {
    for shape in shapes().iter().take(16).step_by(3) {
        check::<bf16, f32>(shape);
        check::<f16, f16>(shape);
        check::<bf16, bf16>(shape);
    }
}

#[test]
fn all_three_passes_are_exact_in_f64() {
    let pool = Pool::new(2);
    let wide = |x: Vec<f32>| x.into_iter().map(f64::from).collect::<Vec<f64>>();
    for s in &shapes() {
        let input = wide(numbers(s.input_len(), 1));
        let filter = wide(numbers(s.filter_len(), 2));
        let grad = wide(numbers(s.output_len(), 3));
        let (mut y, mut dx, mut df) =
            (vec![1.0; grad.len()], vec![1.0; input.len()], vec![1.0; filter.len()]);
        let (mut y_0, mut dx_0, mut df_0) = (y.clone(), dx.clone(), df.clone());
        visit_all(s, |i, f, o| {
            y[o] += input[i] * filter[f];
            dx[i] += grad[o] * filter[f];
            df[f] += grad[o] * input[i];
        });
        forward_f64(&pool, s, &input, &filter, &mut y_0, true, None);
        data_grad_f64(&pool, s, &grad, &filter, &mut dx_0, true, None);
        filter_grad_f64(&pool, s, &input, &grad, &mut df_0, true);
        assert_eq!((y, dx, df), (y_0, dx_0, df_0), "{s:?}");
    }
}

#[test]
fn bits_do_not_depend_on_the_number_of_threads() {
    let s = ConvShape { pad_h: (1, 1), pad_w: (1, 1), ..ConvShape::new([4, 40, 40, 19], [3, 3], 35) };
    let noise = |n: usize| (0..n).map(|i| ((i * 31 % 1009) as f32).sin()).collect::<Vec<f32>>();
    let (input, filter, grad) = (noise(s.input_len()), noise(s.filter_len()), noise(s.output_len()));
    for isa in Isa::available() {
        let run = |threads| {
            let pool = Pool::new(threads);
            let bytes = [
                forward_scratch_bytes::<f32>(isa, &s, threads),
                data_grad_scratch_bytes::<f32>(isa, &s, threads),
                filter_grad_scratch_bytes::<f32>(isa, &s, threads),
            ];
            let mut scratch = vec![0; bytes.into_iter().max().unwrap_or(0)];
            let (mut y, mut dx, mut df) =
                (vec![0f32; grad.len()], vec![0f32; input.len()], vec![0f32; filter.len()]);
            forward(&pool, isa, &s, &input, &filter, &mut y, &Epilogue::NONE, &mut scratch);
            data_grad(&pool, isa, &s, &grad, &filter, &mut dx, &Epilogue::NONE, &mut scratch);
            filter_grad(&pool, isa, &s, &input, &grad, &mut df, false, &mut scratch);
            (y, dx, df)
        };
        let one = run(1);
        assert!(one == run(2) && one == run(3), "{isa}");
    }
}
