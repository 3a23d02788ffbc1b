//! Folders that are damaged, short or lying: each is an error that names file and tensor.

mod common;

use std::path::{Path, PathBuf};

use common::fixture;
use plimsoll_graph::{DType, Type};
use plimsoll_hub::{Folder, Tuning};
use plimsoll_nn::Net;

/// A copy of a fixture to spoil.
struct Copy(PathBuf);

impl Copy {
    fn new(name: &str, test: &str) -> Copy {
        let to = std::env::temp_dir().join(format!("plimsoll-folder-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&to).unwrap();
        for entry in std::fs::read_dir(fixture(name)).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
        Copy(to)
    }

    fn error(&self) -> String {
        let read = |path: &Path| {
            let mut folder = Folder::open(path)?;
            let model = folder.decoder(Tuning::Frozen);
            let params = Net::discover(&[Type::new(DType::I64, [1, 4])], &model)?;
            folder.load(&params, |_, _| Ok(()))
        };
        read(&self.0).unwrap_err().to_string()
    }

    fn edit(&self, file: &str, from: &str, to: &str) {
        let path = self.0.join(file);
        let bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).expect(from);
        let edited = [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat();
        std::fs::write(path, edited).unwrap();
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn a_file_that_is_short_says_so() {
    let copy = Copy::new("qwen3", "short");
    let path = copy.0.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 7]).unwrap();
    let error = copy.error();
    assert!(error.contains("model.safetensors") && error.contains("torn"), "{error}");
}

#[test]
fn a_tensor_that_is_missing_or_unknown_is_named() {
    let copy = Copy::new("qwen3", "unknown");
    copy.edit("model.safetensors", "\"model.norm.weight\"", "\"model.morn.weight\"");
    let error = copy.error();
    assert!(error.contains("no file of weights holds the tensor \"model.norm.weight\""), "{error}");
    copy.edit("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
    copy.edit("model.safetensors", "\"model.morn.weight\"", "\"model.norm.weight\"");
    let error = copy.error();
    assert!(error.contains("layer_types") || error.contains("model.layers.1."), "{error}");
}

#[test]
fn a_tensor_of_another_shape_is_named_with_both() {
    let copy = Copy::new("mistral", "shape");
    copy.edit("config.json", "\"intermediate_size\": 24", "\"intermediate_size\": 25");
    let error = copy.error();
    assert!(error.contains("mlp.") && error.contains("[24, 16]") && error.contains("[25, 16]"), "{error}");
}

#[test]
fn an_index_that_lies_is_refused() {
    let copy = Copy::new("llama", "index");
    let index = "model.safetensors.index.json";
    let first = "model-00001-of-00002.safetensors";
    copy.edit(index, "\"lm_head.weight\": \"model-00001", "\"lm_head.weight\": \"model-00002");
    let error = copy.error();
    assert!(error.contains(index) && error.contains("lm_head.weight"), "{error}");
    copy.edit(index, "model-00002-of-00002.safetensors", "../x-00002-of-00002.safetensors");
    assert!(copy.error().contains("no safetensors file of the folder"));
    std::fs::remove_file(copy.0.join(first)).unwrap();
    std::fs::copy(fixture("llama").join(index), copy.0.join(index)).unwrap();
    assert!(copy.error().contains(first));
}

#[test]
fn a_folder_without_weights_or_with_pickles_says_what_it_has() {
    let copy = Copy::new("phi3", "pickles");
    std::fs::rename(copy.0.join("model.safetensors"), copy.0.join("pytorch_model.bin")).unwrap();
    let error = copy.error();
    assert!(error.contains("pytorch_model.bin") && error.contains("safetensors"), "{error}");
    std::fs::remove_file(copy.0.join("config.json")).unwrap();
    assert!(copy.error().contains("config.json"));
}
