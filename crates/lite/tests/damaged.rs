//! Ten thousand damaged files, each loaded and, where it loads, run: refused or computed, never a panic, in bounded memory.

mod common;

use common::fixtures;
use plimsoll_lite::{Error, Model, Options};

struct Dice(u64);

impl Dice {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count.max(1)
    }
}

/// Loads and runs what may be anything; answers whether it ran.
fn try_it(file: &[u8], pack_weights: bool) -> Result<bool, Error> {
    let model = Model::load_with(file, Options { pack_weights })?;
    assert!(model.table_bytes() <= 64 * file.len() + (1 << 20), "tables of {} bytes", model.table_bytes());
    assert!(model.packed_bytes() <= 8 * file.len() + (2 << 20), "{} packed bytes", model.packed_bytes());
    if model.arena_bytes() > 4 << 20 {
        return Ok(false);
    }
    let mut arena = vec![0x5a; model.arena_bytes()];
    model.run(&mut arena)?;
    for index in 0..model.outputs() {
        model.output(index, &arena)?;
    }
    Ok(true)
}

#[test]
fn ten_thousand_damaged_files_are_refused_or_run() {
    let all = fixtures();
    let mut dice = Dice(3);
    let (mut ran, mut refused) = (0, 0);
    for round in 0..10_000 {
        let mut file = all[round % all.len()].model.clone();
        match dice.below(4) {
            0 => file.truncate(dice.below(file.len())),
            1 => {
                for _ in 0..1 + dice.below(4) {
                    let at = dice.below(file.len());
                    file[at] ^= 1 << dice.below(8);
                }
            }
            2 => {
                for _ in 0..1 + dice.below(8) {
                    let at = dice.below(file.len());
                    file[at] = dice.below(256) as u8;
                }
            }
            _ => {
                // Numbers that are often wrong at their ends.
                let numbers = [0u32, 1, 2, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x10000, 255];
                for _ in 0..1 + dice.below(3) {
                    let at = dice.below(file.len() / 4 - 1) * 4;
                    file[at..at + 4].copy_from_slice(&numbers[dice.below(8)].to_le_bytes());
                }
            }
        }
        match try_it(&file, round % 2 == 0) {
            Ok(true) => ran += 1,
            Ok(false) => {}
            Err(Error::Bug(what)) => panic!("round {round}: {what}"),
            Err(_) => refused += 1,
        }
    }
    println!("{ran} ran, {refused} were refused");
    assert!(ran > 500 && refused > 2000, "{ran} ran, {refused} were refused");
}

#[test]
fn files_of_nothing_and_of_noise_are_refused() {
    let mut dice = Dice(9);
    for length in 0..300 {
        let mut file: Vec<u8> = (0..length).map(|_| dice.below(256) as u8).collect();
        assert!(try_it(&file, false).is_err());
        if length >= 8 {
            file[..8].copy_from_slice(&[8, 0, 0, 0, b'T', b'F', b'L', b'3']);
            assert!(try_it(&file, false).is_err());
        }
    }
}
