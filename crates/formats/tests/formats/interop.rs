//! Files of other programs are read, and files for other programs are written to be checked by `check_written.py`.

use plimsoll_formats::Element;
use plimsoll_formats::safetensors::{Reader, TensorView, write};
use plimsoll_formats::tensorboard::{Bucket, EventWriter};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Where `check_written.py` finds what the tests wrote.
fn written(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Element `i` of the fixture's tensor of this type, as its bits.
fn bits(element: Element, i: i64) -> Vec<u8> {
    let signed = i - 1;
    match element {
        Element::F64 => (signed as f64).to_le_bytes().to_vec(),
        Element::F32 => (signed as f32).to_le_bytes().to_vec(),
        Element::BF16 => (signed as f32).to_le_bytes()[2..].to_vec(),
        // -1, 0, 1, 2, 3, 4 in half precision.
        Element::F16 => [0xbc00u16, 0, 0x3c00, 0x4000, 0x4200, 0x4400][i as usize].to_le_bytes().to_vec(),
        Element::I64 | Element::I32 | Element::I16 | Element::I8 => {
            signed.to_le_bytes()[..element.bytes()].to_vec()
        }
        Element::Bool => vec![u8::from(i != 0)],
        _ => i.to_le_bytes()[..element.bytes()].to_vec(),
    }
}

#[test]
fn a_file_of_the_safetensors_package_is_read_to_the_bit() {
    let mut reader = Reader::open(fixture("tensors.safetensors")).expect("the fixture");
    assert_eq!(reader.metadata()["made by"], "safetensors");
    assert_eq!(reader.tensors().len(), Element::ALL.len() + 2);
    for element in Element::ALL {
        let tensor = reader.tensor(element.numpy_name()).expect("a tensor of each type").clone();
        assert_eq!((tensor.element, tensor.shape.as_slice()), (element, &[2, 3][..]));
        let mut bytes = vec![0; tensor.bytes];
        reader.read_into(&tensor.name, &mut bytes).expect("its bytes");
        assert_eq!(bytes, (0..6).flat_map(|i| bits(element, i)).collect::<Vec<u8>>(), "{element}");
    }
    let mut scalar = [0; 4];
    reader.read_into("scalar", &mut scalar).expect("a scalar");
    assert_eq!(f32::from_le_bytes(scalar), 2.5);
    assert_eq!(reader.tensor("none").expect("an empty tensor").shape, [0, 4]);
}

#[test]
fn the_same_tensors_are_written_for_the_safetensors_package() {
    let data: Vec<Vec<u8>> =
        Element::ALL.iter().map(|element| (0..6).flat_map(|i| bits(*element, i)).collect()).collect();
    let tensors: Vec<TensorView> = Element::ALL
        .iter()
        .zip(&data)
        .map(|(element, bytes)| TensorView {
            name: element.numpy_name(),
            element: *element,
            shape: &[2, 3],
            bytes,
        })
        .collect();
    let metadata = BTreeMap::from([("quote \" and λ".to_string(), "\n".to_string())]);
    let path = written("written.safetensors");
    write(&mut File::create(&path).expect("a file"), &tensors, &metadata).expect("writing");
    assert_eq!(Reader::open(&path).expect("what was written").metadata(), &metadata);
}

#[test]
fn events_are_written_for_tensorboard() {
    let folder = written("events");
    let _ = fs::remove_dir_all(&folder);
    let mut events = EventWriter::create(&folder).expect("an event file");
    for step in 0..100 {
        events.scalar(step, "loss", 1.0 / (step + 1) as f32).expect("a point");
    }
    events.text(3, "plan", "**three** blocks").expect("a text");
    let buckets =
        [Bucket { left: 0.0, right: 1.0, count: 3.0 }, Bucket { left: 1.0, right: 2.0, count: 5.0 }];
    events.histogram(4, "weights", &buckets).expect("a histogram");
    events.flush().expect("flushing");
    assert_eq!(fs::read_dir(&folder).expect("the folder").count(), 1);
}
