//! Prints the speed of the convolution's three passes on the layers of the reference models.
//!
//! `cargo run --release -p plimsoll-cpu --example conv_speed [filter]`

mod speed;

use plimsoll_cpu::conv::{self, ConvShape};
use plimsoll_cpu::gemm::Epilogue;
use plimsoll_cpu::{isa::Isa, pool::Pool};
use speed::{Rate, noise, peak, rate};

/// Name, images, side, input channels, output channels, kernel, stride.
const CASES: [(&str, usize, usize, usize, usize, usize, usize); 17] = [
    ("64-64 at 56", 8, 56, 64, 64, 3, 1),
    ("resnet first", 64, 32, 3, 64, 3, 1),
    ("resnet 64", 64, 32, 64, 64, 3, 1),
    ("resnet 64-128 s2", 64, 32, 64, 128, 3, 2),
    ("resnet 128", 64, 16, 128, 128, 3, 1),
    ("resnet 256", 64, 8, 256, 256, 3, 1),
    ("resnet 512", 64, 4, 512, 512, 3, 1),
    ("resnet 1x1 s2", 64, 32, 64, 128, 1, 2),
    ("unet first", 4, 128, 3, 32, 3, 1),
    ("unet 32", 4, 128, 32, 32, 3, 1),
    ("unet 64-32", 4, 128, 64, 32, 3, 1),
    ("unet 128-64", 4, 64, 128, 64, 3, 1),
    ("unet 256", 4, 16, 256, 256, 3, 1),
    ("unet up 64-32", 4, 128, 32, 64, 2, 2),
    ("unet last", 4, 128, 32, 2, 1, 1),
    ("cnn 32", 64, 32, 32, 32, 3, 1),
    ("cnn 64", 64, 16, 64, 64, 3, 1),
];

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let isa = Isa::detect();
    println!("{isa}, registers alone: {:.1} GFLOP/s a core", peak());
    println!("GFLOP/s wall 1t 2t (a cpu second 1t) for forward | data gradient | filter gradient");
    for (name, images, side, in_c, out_c, kernel, stride) in
        CASES.into_iter().filter(|c| c.0.contains(&filter))
    {
        let pad = if kernel == 3 { (1, 1) } else { (0, 0) };
        let s = ConvShape {
            stride_h: stride,
            stride_w: stride,
            pad_h: pad,
            pad_w: pad,
            ..ConvShape::new([images, side, side, in_c], [kernel, kernel], out_c)
        };
        let (x, f, dy) = (noise(s.input_len()), noise(s.filter_len()), noise(s.output_len()));
        let (mut y, mut dx, mut df) = (vec![0f32; dy.len()], vec![0f32; x.len()], vec![0f32; f.len()]);
        let mut rates: Vec<Vec<Rate>> = vec![vec![], vec![], vec![]];
        for threads in [1, 2] {
            let pool = Pool::new(threads);
            let none = Epilogue::NONE;
            let mut scratch = vec![0; conv::forward_scratch_bytes::<f32>(isa, &s, threads)];
            rates[0]
                .push(rate(s.flops(), || conv::forward(&pool, isa, &s, &x, &f, &mut y, &none, &mut scratch)));
            let mut scratch = vec![0; conv::data_grad_scratch_bytes::<f32>(isa, &s, threads)];
            rates[1].push(rate(s.flops(), || {
                conv::data_grad(&pool, isa, &s, &dy, &f, &mut dx, &none, &mut scratch)
            }));
            let mut scratch = vec![0; conv::filter_grad_scratch_bytes::<f32>(isa, &s, threads)];
            rates[2].push(rate(s.flops(), || {
                conv::filter_grad(&pool, isa, &s, &x, &dy, &mut df, false, &mut scratch)
            }));
        }
        print!("{name:<18}");
        for pass in &rates {
            print!(" | {:>6.1} {:>6.1} ({:>6.1})", pass[0].wall, pass[1].wall, pass[0].cpu);
        }
        println!();
    }
}
