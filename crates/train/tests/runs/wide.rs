//! f64 among narrower floats: trained all the same, and named once.

use plimsoll_data::{Column, Dataset};
use plimsoll_train::{Epochs, Notice};

use super::{Told, data, trainer};

#[test]
fn a_column_of_f64_is_named_once_a_run() {
    let x: Vec<f64> = (0..12 * 6).map(|i| f64::from(i % 7) / 7.0).collect();
    let y: Vec<i64> = (0..12).map(|i| i % 3).collect();
    let columns = [Column::memory("x", x, [6]).unwrap(), Column::memory("y", y, []).unwrap()];
    let told = Told::default();
    // Doubles are read as f32 unless they are asked for as they are.
    let wide = Dataset::columns(columns).unwrap().stored().batch(4);
    trainer().callback(told.clone()).fit(wide, Epochs(2)).unwrap();
    let remarks = |told: &Told| -> Vec<String> {
        let notices = told.0.lock().unwrap();
        let what = |notice: &Notice| match notice {
            Notice::Remarked { what, .. } => Some(what.clone()),
            _ => None,
        };
        notices.iter().filter_map(what).collect()
    };
    let said = remarks(&told);
    assert!(said.len() == 1 && said[0].contains("input 0 (f64[4, 6])"), "{said:?}");
    let told = Told::default();
    trainer().callback(told.clone()).fit(data(), Epochs(1)).unwrap();
    assert!(remarks(&told).is_empty());
}
