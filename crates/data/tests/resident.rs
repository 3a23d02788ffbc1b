//! The budget in the system's own figures: this test is alone in its process.
#![cfg(target_os = "linux")]

use plimsoll_data::Dataset;
use plimsoll_device::{Bytes, process};
use plimsoll_formats::{Element, npy};

#[test]
fn a_file_of_many_times_the_budget_leaves_the_process_inside_it() {
    let path = std::env::temp_dir().join(format!("plimsoll-resident-{}.npy", std::process::id()));
    let mut file = std::fs::File::create(&path).unwrap();
    npy::write_header(&mut file, Element::F32, &[16 << 10, 4096]).unwrap();
    // 256 MiB of zeros, which take no room on the disk.
    file.set_len(file.metadata().unwrap().len() + (256 << 20)).unwrap();
    drop(file);
    let budget = Bytes::mib(16);
    let before = process::peak_resident().unwrap();
    let dataset = Dataset::npy([("x", path.as_path())]).unwrap().shuffle(1 << 20, 1).batch(64).memory(budget);
    assert!(dataset.declared_bytes().unwrap() <= budget);
    let (mut batches, mut samples) = (dataset.batches().unwrap(), 0);
    for batch in batches.by_ref() {
        samples += batch.unwrap().samples();
    }
    let after = process::peak_resident().unwrap();
    std::fs::remove_file(path).unwrap();
    assert_eq!(samples, 16 << 10);
    // What the test's own code pages in comes on top.
    let grown = after.saturating_sub(before);
    assert!(grown <= budget + Bytes::mib(2), "{before} to {after} under {budget}");
    assert!(grown >= Bytes::mib(2), "nothing was measured: {before} to {after}");
}
