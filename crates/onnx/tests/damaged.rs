//! Files that are damaged: errors, never a panic, and no more memory than is declared.

use std::fs;
use std::path::PathBuf;

use plimsoll_graph::{DType, Type};
use plimsoll_onnx::{Lengths, Limits, OnnxFile, OnnxModel};
use plimsoll_run::Tensor;
use plimsoll_testing::{Counting, Dice, Scratch, damaged};

#[global_allocator]
static COUNTING: Counting = Counting;

fn fixture(name: &str) -> Vec<u8> {
    fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap()
}

#[test]
fn ten_thousand_damaged_files_are_refused_or_read_within_bounds() {
    let files = [fixture("mlp.onnx"), fixture("cnn.onnx"), fixture("attention.onnx")];
    let lengths = [Lengths::default(), Lengths::default(), Lengths::default().with("sequence", 5)];
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    // The process's device has an address for every byte of the machine, of which none is taken before it is used.
    Tensor::zeros(Type::new(DType::F32, [1])).unwrap();
    let mut read = 0;
    for i in 0..10_000 {
        let bad = damaged(&files[i % 3], &mut dice);
        let before = Counting::forget_most();
        // What it is when it opens is not asked: only that it ends, within bounds.
        read +=
            usize::from(OnnxModel::from_bytes(bad, "damaged", &Limits::default(), &lengths[i % 3]).is_ok());
        let most = Counting::held().1 - before;
        assert!(most < 64 << 20, "file {i} took {most} bytes");
    }
    assert!(read < 6_000, "{read} damaged files were read as if they were whole");
}

#[test]
fn a_tensor_outside_of_the_models_folder_is_refused() {
    let scratch = Scratch::new("onnx-outside");
    let folder = scratch.folder().join("model");
    fs::create_dir(&folder).unwrap();
    fs::write(scratch.folder().join("ention.data"), fixture("attention.data")).unwrap();
    let bytes = fixture("attention.onnx");
    let with = |name: &[u8; 14]| {
        let mut bytes = bytes.clone();
        for i in 0..bytes.len() - name.len() {
            if &bytes[i..i + name.len()] == b"attention.data" {
                bytes[i..i + name.len()].copy_from_slice(name);
            }
        }
        let path = folder.join("model.onnx");
        fs::write(&path, bytes).unwrap();
        OnnxFile::open(path)
    };
    let error = with(b"../ention.data").unwrap_err().to_string();
    assert!(error.contains("not below the model's folder"), "{error}");
    assert!(with(b"/tmp/tion.data").unwrap_err().to_string().contains("not below"));
    assert!(with(b"attention.data").is_err(), "the file is not there");
    fs::write(folder.join("attention.data"), fixture("attention.data")).unwrap();
    assert!(with(b"attention.data").is_ok());
    fs::write(folder.join("attention.data"), &fixture("attention.data")[..1000]).unwrap();
    assert!(with(b"attention.data").unwrap_err().to_string().contains("ends beyond"));
    #[cfg(unix)]
    {
        fs::remove_file(folder.join("attention.data")).unwrap();
        std::os::unix::fs::symlink(scratch.folder().join("ention.data"), folder.join("attention.data"))
            .unwrap();
        let error = with(b"attention.data").unwrap_err().to_string();
        assert!(error.contains("leads out"), "{error}");
    }
}

#[test]
fn limits_are_held() {
    let bytes = fixture("cnn.onnx");
    let small = Limits { file_bytes: 100, ..Limits::default() };
    assert!(
        OnnxFile::from_bytes(bytes.clone(), "cnn", &small).unwrap_err().to_string().contains("size in bytes")
    );
    let few = Limits { fields: 20, ..Limits::default() };
    assert!(
        OnnxFile::from_bytes(bytes, "cnn", &few).unwrap_err().to_string().contains("number of its fields")
    );
}

#[test]
fn a_compressed_file_is_called_one() {
    for start in [&b"\x1f\x8b\x08"[..], b"PK\x03\x04"] {
        let bytes = [start, &fixture("cnn.onnx")].concat();
        let error = OnnxFile::from_bytes(bytes, "cnn.onnx.gz", &Limits::default()).unwrap_err().to_string();
        assert!(error.contains("it is compressed; unpack it first"), "{error}");
    }
}
