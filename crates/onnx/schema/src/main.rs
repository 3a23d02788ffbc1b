//! Turns the schema of the `onnx` package into the messages of `plimsoll-onnx`, without `protoc`.
//!
//! ```text
//! python -c 'import onnx, os; print(os.path.dirname(onnx.__file__))'      # the folder of onnx.proto
//! cargo run -- FOLDER/onnx.proto ../third_party/messages.rs
//! ```

use std::error::Error;
use std::path::Path;

const HEAD: &str = "\
//! The messages of ONNX's published schema (onnx.proto, Apache-2.0), as `crates/onnx/schema` makes them with `prost`: do not edit.
//!
//! Bytes are slices of the file that was read, not copies.
#![allow(missing_docs, clippy::all)]

";

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(schema), Some(out)) = (args.next(), args.next()) else {
        return Err("give the path of onnx.proto and that of the file to write".into());
    };
    let folder = Path::new(&schema).parent().ok_or("onnx.proto has no folder")?.to_path_buf();
    let descriptors = protox::compile([&schema], [folder])?;
    let made = std::env::temp_dir().join(format!("plimsoll-onnx-schema-{}", std::process::id()));
    std::fs::create_dir_all(&made)?;
    let mut config = prost_build::Config::new();
    config.out_dir(&made).bytes(["."]).disable_comments(["."]);
    config.compile_fds(descriptors)?;
    let code = std::fs::read_to_string(made.join("onnx.rs"))?;
    let body: Vec<&str> = code.lines().filter(|line| !line.starts_with("// This file is @generated")).collect();
    std::fs::write(&out, format!("{HEAD}{}\n", body.join("\n")))?;
    std::fs::remove_dir_all(&made)?;
    Ok(())
}
