//! Keras applications as `.tflite` files here and in LiteRT, by `applications.py`. Needs TensorFlow for the Python that `PLIMSOLL_LITERT_PYTHON`
//! names; counted as the group `litert` where there is none.

use std::path::Path;
use std::process::Command;

#[test]
fn mobilenet_v2_is_litert_s_in_no_larger_an_arena() {
    let found = std::env::var("PLIMSOLL_LITERT_PYTHON").map_err(|_| "PLIMSOLL_LITERT_PYTHON names no Python");
    let Some(python) = plimsoll_testing::group("litert", found) else { return };
    let test = std::env::current_exe().expect("a test knows where it is");
    // Examples are built with the tests, in the folder beside theirs.
    let measure =
        test.parent().and_then(Path::parent).expect("a test lies in a folder").join("examples/measure");
    let ran = Command::new(python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/applications.py"))
        .arg(measure)
        .args(["1", "MobileNetV2-96"])
        .env("OMP_NUM_THREADS", "1")
        .output()
        .expect("Python can be started");
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{text}{}", String::from_utf8_lossy(&ran.stderr));
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| line.starts_with("MobileNetV2-96"))
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(rows.len(), 2, "{text}");
    for row in rows {
        let (ours, theirs): (usize, usize) = (row[2].parse().unwrap(), row[3].parse().unwrap());
        assert!(ours <= theirs, "{text}");
    }
}
