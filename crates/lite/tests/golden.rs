//! Every fixture against what LiteRT's reference kernels made of it: floats within 1e-5, bytes within one quantum.

mod common;

use common::{Fixture, fixtures};
use plimsoll_lite::{Model, Options, Type};

/// The largest difference, as a part of what is allowed, or why there is none.
fn compare(fixture: &Fixture, options: Options) -> Result<(f64, usize, usize), String> {
    let model = Model::load_with(&fixture.model, options).map_err(|error| error.to_string())?;
    // What lies in an arena before must not matter.
    let mut arena = vec![0xa5; model.arena_bytes()];
    for (index, input) in fixture.inputs.iter().enumerate() {
        model.input(index, &mut arena).map_err(|error| error.to_string())?.copy_from_slice(input);
    }
    model.run(&mut arena).map_err(|error| error.to_string())?;
    let (mut worst, mut equal, mut all) = (0.0f64, 0, 0);
    for (index, expected) in fixture.outputs.iter().enumerate() {
        let ours = model.output(index, &arena).map_err(|error| error.to_string())?;
        assert_eq!(ours.len(), expected.len(), "{}", fixture.name);
        let floats = |bytes: &[u8]| -> Vec<f32> {
            bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
        };
        match model.output_info(index).unwrap().kind {
            Type::F32 => {
                // Weights of bytes are used as the numbers they stand for, where LiteRT rounds the operand to bytes as well.
                let allowed = if fixture.name.ends_with(".dynamic") { 0.05 } else { 1e-5 };
                for (ours, theirs) in floats(ours).into_iter().zip(floats(expected)) {
                    let error =
                        f64::from((ours - theirs).abs()) / (allowed * f64::from(theirs.abs().max(1.0)));
                    worst = if error.is_nan() && !theirs.is_nan() { f64::INFINITY } else { worst.max(error) };
                    equal += usize::from(ours == theirs);
                    all += 1;
                }
            }
            Type::I8 => {
                for (ours, theirs) in ours.iter().zip(expected) {
                    worst = worst.max(f64::from((i32::from(*ours as i8) - i32::from(*theirs as i8)).abs()));
                    equal += usize::from(ours == theirs);
                    all += 1;
                }
            }
            _ => {
                if ours != expected {
                    worst = f64::INFINITY;
                }
                all += 1;
            }
        }
    }
    Ok((worst, equal, all))
}

fn check(options: Options) {
    let (mut wrong, mut bytes_equal, mut bytes_all) = (Vec::new(), 0, 0);
    let all = fixtures();
    assert!(all.len() > 100, "only {} fixtures", all.len());
    for fixture in &all {
        match compare(fixture, options) {
            Ok((worst, equal, count)) => {
                if worst > 1.0 {
                    wrong.push(format!(
                        "{}: {worst} of what is allowed, {equal} of {count} equal",
                        fixture.name
                    ));
                }
                if fixture.name.ends_with(".int8") {
                    bytes_equal += equal;
                    bytes_all += count;
                }
            }
            Err(why) => wrong.push(format!("{}: {why}", fixture.name)),
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), all.len(), wrong.join("\n"));
    println!("{} fixtures; {bytes_equal} of {bytes_all} bytes equal", all.len());
    assert!(bytes_equal * 100 >= bytes_all * 98, "{bytes_equal} of {bytes_all} bytes are equal");
}

#[test]
fn results_are_litert_s() {
    check(Options::default());
}

#[test]
fn results_are_litert_s_with_packed_weights() {
    check(Options { pack_weights: true });
}
