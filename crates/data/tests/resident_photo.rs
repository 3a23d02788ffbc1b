//! What decoding a large photo takes, in the system's own figures: this test is alone in its process.
#![cfg(target_os = "linux")]

mod common;

use common::{Folder, jpeg};
use plimsoll_data::{Dataset, Images, Open};
use plimsoll_device::{Bytes, process};

#[test]
fn a_photo_of_fifty_megapixels_takes_what_is_declared() {
    let folder = Folder::new("resident-photo");
    folder.write("large/large.jpg", jpeg(8192, 6144, 1));
    folder.write("small/small.jpg", jpeg(256, 192, 1));
    // The code that decodes and resizes is paged in before anything is measured: a development build has megabytes of it.
    for side in [64, 300] {
        let open = Open { images: Some(Images::new(side, side)), ..Open::default() };
        let data = Dataset::open_with(folder.0.join("small"), &open).unwrap().batch(1).workers(1).prefetch(0);
        assert_eq!(data.batches().unwrap().map(|batch| batch.unwrap().samples()).sum::<usize>(), 1);
    }
    // Small pictures first: what stays below the peak of another would not be seen.
    for (side, least) in [(64, Bytes(0)), (1600, Bytes::mib(100))] {
        let open = Open { images: Some(Images::new(side, side)), ..Open::default() };
        let before = process::peak_resident().unwrap();
        let data = Dataset::open_with(folder.0.join("large"), &open)
            .unwrap()
            .batch(1)
            .repeat(2)
            .workers(1)
            .prefetch(0);
        let declared = data.declared_bytes().unwrap();
        assert_eq!(data.batches().unwrap().map(|batch| batch.unwrap().samples()).sum::<usize>(), 2);
        let grown = process::peak_resident().unwrap().saturating_sub(before);
        // What the test's own code pages in comes on top.
        assert!(grown <= declared + Bytes::mib(2), "{grown:#} where {declared:#} are declared");
        assert!(grown >= least, "nothing was measured: {grown:#}");
        assert!(side > 64 || declared < Bytes::mib(8), "{declared:#} for a 64th of the pixels");
    }
}
