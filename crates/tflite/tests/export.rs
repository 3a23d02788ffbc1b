//! Models of the zoo as `.tflite` files: every one is read back and compared before it is written. Where `PLIMSOLL_TFLITE_EXPORTS` names a
//! folder, the files stay there with inputs and outputs for `check_exports.py`, which holds them against LiteRT.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_graph::{DType, RandomOps, TensorOps, Type};
use plimsoll_nn::{Conv2d, Model, Net, Predicting, Recurrent, model, zoo};
use plimsoll_run::Tensor;
use plimsoll_testing::Scratch;
use plimsoll_tflite::{Calibration, Error, Goal, OpCode, Quantize, Range, Written, read, run, write_model};

/// A line of a name, its shape and its elements.
fn line(kind: &str, name: &str, x: &Tensor) -> String {
    let shape: Vec<String> = x.shape().iter().map(usize::to_string).collect();
    let mut text = format!("{kind} {name} {}", shape.join(","));
    x.to_f64().unwrap().iter().for_each(|x| write!(text, " {x:e}").unwrap());
    text + "\n"
}

fn drawn(ty: &Type, seed: u32) -> Tensor {
    let key = Tensor::from_slice(&[9i64, 0, 0], [3]).unwrap();
    match ty.dtype.is_float() {
        true => key.random_normal(ty.clone(), seed, 0.0, 1.0).unwrap(),
        false => {
            let tokens: Vec<f64> = (0..ty.elements()).map(|i| ((i + seed as usize) % 7) as f64).collect();
            Tensor::from_f64(&tokens, ty.clone()).unwrap()
        }
    }
}

/// Writes a model in one way, and what it gives beside it where files are kept.
fn export(
    folder: &Path,
    name: &str,
    model: &impl Model,
    input: &Type,
    how: &Quantize,
) -> Result<Written, Error> {
    let path = folder.join(format!("{name}.tflite"));
    let params = Net::discover(std::slice::from_ref(input), model).unwrap();
    let values: Vec<Tensor> = params.iter().map(|p| p.init.draw(&p.name, &p.ty, 3).unwrap()).collect();
    let written =
        write_model(&path, name, model, &[("input".into(), input.clone())], &params, &values, &goal(how))?;
    let back = read(&std::fs::read(&path).unwrap()).unwrap();
    let x = drawn(input, 1);
    let ours = Predicting::forward(model, std::slice::from_ref(&x), &params, &values).unwrap();
    let simulated = run(&back, std::slice::from_ref(&x)).unwrap();
    let mut text = line("in", "input", &x);
    ours.iter().for_each(|y| text += &line("out", "model", y));
    simulated.iter().for_each(|y| text += &line("file", "file", y));
    std::fs::write(folder.join(format!("{name}.txt")), text).unwrap();
    Ok(written)
}

fn folder(scratch: &Scratch) -> PathBuf {
    let kept = std::env::var_os("PLIMSOLL_TFLITE_EXPORTS").map(PathBuf::from);
    kept.unwrap_or_else(|| scratch.folder().to_path_buf())
}

fn small(entry: &zoo::Entry) -> zoo::Entry {
    entry.within(zoo::Size { width: 16, depth: 2, heads: 2, image: 32, patch: 16, sequence: 12, classes: 20 })
}

fn calibration(input: &Type, int8_ports: bool) -> Quantize {
    let samples = (0..8).map(|i| vec![drawn(input, i)]).collect();
    Quantize::Int8(Calibration { samples, range: Range::MinMax, int8_ports })
}

/// A file with numbers like this, in any arena.
fn goal(how: &Quantize) -> Goal {
    Goal { quantize: how.clone(), arena: None }
}

#[test]
fn every_model_of_the_zoo_is_written_and_reads_back_the_same() {
    let scratch = Scratch::new("tflite-zoo");
    let folder = folder(&scratch);
    for entry in zoo::ALL {
        let small = small(entry);
        let input = small.input(1);
        let one = |kind: &str, how: &Quantize| {
            export(&folder, &format!("{}-{kind}", entry.name), &small, &input, how)
                .unwrap_or_else(|error| panic!("{}: {error}", entry.name))
        };
        let f32 = one("f32", &Quantize::No);
        assert!(f32.distance < 1e-5, "{}: {}", entry.name, f32.distance);
        let f16 = one("f16", &Quantize::HalfWeights);
        assert!(f16.bytes < f32.bytes, "{}: {} of {} bytes", entry.name, f16.bytes, f32.bytes);
        let dynamic = one("dynamic", &Quantize::DynamicRange);
        assert!(dynamic.bytes < f16.bytes + 4096, "{}: {} bytes", entry.name, dynamic.bytes);
        assert!(dynamic.distance < 0.1, "{}: {}", entry.name, dynamic.distance);
        let int8 = one("int8", &calibration(&input, false));
        assert!(int8.distance < 0.3, "{}: {}", entry.name, int8.distance);
    }
}

/// A Python that has LiteRT.
fn litert() -> Option<String> {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let asked = Command::new(&python).args(["-c", "import numpy, ai_edge_litert.interpreter"]).output();
    let found = match asked {
        Ok(answer) if answer.status.success() => Ok(python),
        _ => Err(format!("{python} has no ai_edge_litert")),
    };
    plimsoll_testing::group("litert", found)
}

#[test]
fn litert_gives_what_we_read_the_files_as() {
    let Some(python) = litert() else { return };
    let scratch = Scratch::new("tflite-litert");
    for name in ["cnn", "unet", "vit", "lstm"] {
        let small = small(&zoo::find(name).unwrap());
        let input = small.input(1);
        export(scratch.folder(), &format!("{name}-f32"), &small, &input, &Quantize::No).unwrap();
        export(scratch.folder(), &format!("{name}-int8"), &small, &input, &calibration(&input, false))
            .unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/check_exports.py");
    let ran =
        Command::new(python).arg(script).arg(scratch.folder()).env("OMP_NUM_THREADS", "1").output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn norms_and_activations_are_folded_into_the_convolutions_before_them() {
    let scratch = Scratch::new("tflite-fold");
    let entry = small(&zoo::find("resnet18").unwrap());
    export(scratch.folder(), "resnet", &entry, &entry.input(1), &Quantize::No).unwrap();
    let found = read(&std::fs::read(scratch.folder().join("resnet.tflite")).unwrap()).unwrap();
    let count = |code: OpCode| found.ops.iter().filter(|op| op.code == code).count();
    assert_eq!((count(OpCode::Mul), count(OpCode::Relu)), (0, 0));
    // Blocks are added; nothing else is.
    assert_eq!(count(OpCode::Add), 8);
    assert_eq!(count(OpCode::Conv2d), 20);
}

#[test]
fn six_at_most_and_borders_of_zeros_are_folded_where_they_are_what_a_convolution_does() {
    let scratch = Scratch::new("tflite-borders");
    // As Keras writes it: a border behind each side, a window that steps by two, relu, six at most.
    let net = |low: usize, high: usize| {
        model(move |net, x: &[Tensor]| {
            let sides = [(0, 0), (low, high), (low, high), (0, 0)];
            let framed = x[0].pad(&sides, 0.0)?;
            net.conv2d("conv", &framed, Conv2d::new(4, 3).stride(2))?.relu()?.clamp(f64::NEG_INFINITY, 6.0)
        })
    };
    let input = Type::new(DType::F32, [1, 8, 8, 3]);
    for ((low, high), borders) in [((0, 1), 0), ((1, 0), 1), ((1, 1), 1)] {
        export(scratch.folder(), "net", &net(low, high), &input, &Quantize::No).unwrap();
        let found = read(&std::fs::read(scratch.folder().join("net.tflite")).unwrap()).unwrap();
        let count = |code: OpCode| found.ops.iter().filter(|op| op.code == code).count();
        assert_eq!(count(OpCode::Pad), borders, "{low} and {high}");
        assert_eq!((count(OpCode::Relu), count(OpCode::Minimum), count(OpCode::Conv2d)), (0, 0, 1));
        std::fs::remove_file(scratch.folder().join("net.tflite")).unwrap();
    }
}

#[test]
fn int8_models_can_take_and_give_bytes() {
    let scratch = Scratch::new("tflite-ports");
    let entry = small(&zoo::find("cnn").unwrap());
    export(&folder(&scratch), "cnn-bytes", &entry, &entry.input(1), &calibration(&entry.input(1), true))
        .unwrap();
    let found = read(&std::fs::read(folder(&scratch).join("cnn-bytes.tflite")).unwrap()).unwrap();
    let ty = |at: usize| found.tensors[at].ty.dtype();
    assert_eq!((ty(found.inputs[0].1), ty(found.outputs[0].1)), (DType::I8, DType::I8));
    assert!(found.ops.iter().all(|op| !matches!(op.code, OpCode::Quantize | OpCode::Dequantize)));
}

#[test]
fn recurrent_layers_are_written_step_by_step() {
    let scratch = Scratch::new("tflite-recurrent");
    let input = Type::new(DType::F32, [2, 5, 3]);
    let gru = model(|net, x: &[Tensor]| net.gru("gru", &x[0], Recurrent::all(4)));
    export(&folder(&scratch), "gru-f32", &gru, &input, &Quantize::No).unwrap();
    let lstm = model(|net, x: &[Tensor]| net.lstm("lstm", &x[0], Recurrent::all(4)));
    export(&folder(&scratch), "lstm_layer-f32", &lstm, &input, &Quantize::No).unwrap();
}

#[test]
fn an_op_that_has_no_counterpart_is_named() {
    let scratch = Scratch::new("tflite-refused");
    let input = Type::new(DType::F32, [1, 4]);
    let odd = model(|_, x: &[Tensor]| plimsoll_graph::CumulativeOps::cumprod(&x[0], 1));
    let error = export(scratch.folder(), "odd", &odd, &input, &Quantize::No).unwrap_err().to_string();
    assert!(error.contains("cumprod"), "{error}");
    assert!(!scratch.folder().join("odd.tflite").exists());
    let double = model(|_, x: &[Tensor]| x[0].exp());
    let error = export(scratch.folder(), "double", &double, &Type::new(DType::F64, [1, 4]), &Quantize::No);
    assert!(error.unwrap_err().to_string().contains("f64"));
}

#[test]
fn a_calibration_without_samples_is_refused() {
    let scratch = Scratch::new("tflite-empty");
    let entry = small(&zoo::find("mlp").unwrap());
    let none = Quantize::Int8(Calibration { samples: vec![], range: Range::MinMax, int8_ports: false });
    let error = export(scratch.folder(), "none", &entry, &entry.input(1), &none).unwrap_err().to_string();
    assert!(error.contains("not one sample"), "{error}");
}

/// What a file gives for bytes of inputs, by the runtime of whole numbers.
fn by_lite(file: &[u8], x: &Tensor) -> (usize, Vec<f32>) {
    let model = plimsoll_lite::Model::load(file).unwrap();
    let mut arena = vec![0; model.arena_bytes()];
    model.set_input(0, &x.to_vec::<f32>().unwrap(), &mut arena).unwrap();
    model.run(&mut arena).unwrap();
    let mut found = vec![0.0; model.output_info(0).unwrap().shape.iter().product()];
    model.get_output(0, &arena, &mut found).unwrap();
    (model.arena_bytes(), found)
}

#[test]
fn a_limit_is_kept_by_layers_in_parts_with_the_same_numbers_or_refused_with_the_least() {
    let scratch = Scratch::new("tflite-limit");
    for name in ["mobilenet", "cnn"] {
        // Of narrower models nothing is wider than the picture, which comes in f32.
        let entry = small(&zoo::find(name).unwrap()).sized(|size| size.width = 32);
        let input = entry.input(1);
        let params = Net::discover(std::slice::from_ref(&input), &entry).unwrap();
        let values: Vec<Tensor> = params.iter().map(|p| p.init.draw(&p.name, &p.ty, 3).unwrap()).collect();
        let path = scratch.folder().join("limited.tflite");
        let written = |arena: Option<usize>| {
            let goal = Goal { quantize: calibration(&input, false), arena };
            let ports = [("input".to_string(), input.clone())];
            write_model(&path, name, &entry, &ports, &params, &values, &goal)
        };
        let x = drawn(&input, 1);
        let whole = written(None).unwrap();
        let (arena, wanted) = by_lite(&std::fs::read(&path).unwrap(), &x);
        assert_eq!((whole.arena, whole.in_parts), (Ok(arena), 0), "{name}");
        std::fs::remove_file(&path).unwrap();
        let Err(Error::Arena { least, limit: 64 }) = written(Some(64)) else { panic!("{name} in 64 bytes") };
        assert!(least < arena && !path.exists(), "{name}: {least} of {arena}");
        let cut = written(Some(least)).unwrap();
        assert!(cut.in_parts > 0, "{name}");
        let (within, found) = by_lite(&std::fs::read(&path).unwrap(), &x);
        assert!(within <= least, "{name}: {within}");
        assert_eq!(found, wanted, "{name}");
        // What fits as it is stays as it is.
        assert_eq!(written(Some(arena)).unwrap().in_parts, 0);
    }
}
