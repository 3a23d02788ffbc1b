//! An exported program that is damaged in thousands of ways: an error or a model, never a panic, and no memory beyond a bound.

use std::panic::catch_unwind;

use plimsoll_graph::Type;
use plimsoll_nn::Net;
use plimsoll_testing::{Counting, Dice};
use plimsoll_torch::{Limits, Program, TorchModel};

#[global_allocator]
static MEMORY: Counting = Counting;

/// Tries everything that reads a file: its program, its values, and its shapes from inputs to outputs.
fn open(bytes: Vec<u8>) -> Result<(), String> {
    let limits = Limits { members: 64, json: 1 << 20, repeated: 1 << 20 };
    let program = Program::from_bytes(bytes, "damaged.pt2", &limits).map_err(|e| e.to_string())?;
    let model = TorchModel::new(program).map_err(|e| e.to_string())?;
    for held in model.program().held() {
        model.program().value(held).map_err(|e| e.to_string())?;
    }
    let inputs: Vec<Type> = model.input_types(3).map_err(|e| e.to_string())?;
    Net::discover(&inputs, &model).map(drop).map_err(|e| e.to_string())
}

#[test]
fn a_damaged_program_is_an_error_and_no_panic() {
    // So many times as many ways as usual, for who has the time: 3 makes more than 10,000.
    let times = std::env::var("PLIMSOLL_TIMES").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    let mut ways = 0;
    for (name, text) in [("mlp", 1000), ("conv", 750), ("attention", 750), ("signal", 1000)] {
        let path = format!("{}/tests/fixtures/{name}.pt2", env!("CARGO_MANIFEST_DIR"));
        let whole = std::fs::read(path).unwrap();
        open(whole.clone()).unwrap();
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
        // The program's text is where a change reaches furthest; it is stored as it is, under a checksum.
        let at = whole.windows(16).position(|w| w == b"{\"graph_module\":").unwrap();
        let end = at + whole[at..].windows(2).position(|w| w == b"PK").unwrap();
        for way in 0..times * text {
            let mut bytes = whole.clone();
            match way % 6 {
                0 => bytes.truncate(dice.roll(bytes.len())),
                1 => {
                    let i = dice.roll(bytes.len());
                    bytes[i] ^= 1 << dice.roll(8);
                }
                2 => {
                    let (i, n) = (dice.roll(bytes.len()), 1 + dice.roll(64));
                    let stop = (i + n).min(bytes.len());
                    bytes[i..stop].fill(dice.roll(256) as u8);
                }
                _ => {
                    damage_text(&mut bytes[at..end], &mut dice);
                    seal(&mut bytes, at);
                }
            }
            let most = Counting::forget_most();
            let ended = catch_unwind(|| open(bytes).is_ok());
            let (_, peak) = Counting::held();
            assert!(ended.is_ok(), "{name}: way {way} panicked");
            assert!(peak - most < 64 << 20, "{name}: way {way} took {} bytes", peak - most);
            ways += 1;
        }
    }
    assert_eq!(ways, 3500 * times);
}

/// Changes a number, a name or a word of the program, so that it stays JSON more often than not.
fn damage_text(text: &mut [u8], dice: &mut Dice) {
    for _ in 0..1 + dice.roll(3) {
        let start = dice.roll(text.len());
        let is_digit = dice.roll(3) > 0;
        let wanted = |b: &u8| if is_digit { b.is_ascii_digit() } else { b.is_ascii_lowercase() };
        if let Some(found) = text[start..].iter().position(wanted) {
            let at = start + found;
            text[at] = if is_digit { b'0' + dice.roll(10) as u8 } else { b'a' + dice.roll(26) as u8 };
        }
    }
}

/// Writes the checksum of the program's text anew wherever the archive has it, so that what was damaged is read.
fn seal(bytes: &mut [u8], at: usize) {
    let local = bytes[..at].windows(4).rposition(|w| w == b"PK\x03\x04").unwrap();
    let size = u32::from_le_bytes(bytes[local + 18..local + 22].try_into().unwrap()) as usize;
    let old = bytes[local + 14..local + 18].to_vec();
    let new = crc32(&bytes[at..at + size]).to_le_bytes();
    let places: Vec<usize> = (0..bytes.len() - 4).filter(|&i| bytes[i..i + 4] == old[..]).collect();
    for place in places {
        bytes[place..place + 4].copy_from_slice(&new);
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}
