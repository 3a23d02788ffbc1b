//! A pipeline in its stride allocates nothing: this test counts what its process allocates.

use plimsoll_data::{Column, Dataset};
use plimsoll_formats::{Element, npy};
use plimsoll_testing::Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

/// The fewest allocations while 50 batches are made: a thread that starts late may still allocate its scratch in one or the
/// other such stretch, but something that is allocated for each batch is in all of them.
fn in_stride(dataset: Dataset) -> usize {
    let mut batches = dataset.batch(8).workers(2).prefetch(2).batches().unwrap();
    let (mut sum, mut fewest) = (0.0, usize::MAX);
    for _ in 0..7 {
        let before = Counting::allocations();
        for _ in 0..50 {
            let batch = batches.next().unwrap().unwrap();
            sum += batch.field(0).unwrap().get::<f32>().unwrap()[0];
        }
        fewest = fewest.min(Counting::allocations() - before);
    }
    assert!(sum > 0.0);
    fewest
}

#[test]
fn a_pipeline_of_fixed_shapes_allocates_nothing_in_its_stride() {
    let path = std::env::temp_dir().join(format!("plimsoll-allocations-{}.npy", std::process::id()));
    let mut bytes = Vec::new();
    npy::write_header(&mut bytes, Element::U8, &[3000, 100]).unwrap();
    bytes.resize(bytes.len() + 300_000, 7);
    std::fs::write(&path, bytes).unwrap();
    let file = || Dataset::npy([("x", path.as_path())]).unwrap();
    assert_eq!(in_stride(file()), 0);
    assert_eq!(in_stride(file().shuffle(100, 1)), 0);
    let brighter = file().map_in_place(|x, _| {
        x.get_mut::<f32>(0)?.iter_mut().for_each(|x| *x *= 1.5);
        Ok(())
    });
    assert_eq!(in_stride(brighter), 0);
    let memory = Column::memory("x", vec![1f32; 30_000], [10]).unwrap();
    assert_eq!(in_stride(Dataset::columns([memory]).unwrap().repeat(2)), 0);
    std::fs::remove_file(path).unwrap();
}
