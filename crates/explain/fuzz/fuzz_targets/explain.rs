//! Any bytes, taken for a log, a pickle and JSON: what is said stays short, nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for name in ["-", "x.pickle", "x.json"] {
        if let Ok(told) = plimsoll_explain::explain(bytes, name) {
            assert!(told.to_string().len() < 1 << 16);
            assert!(told.to_html().len() < 1 << 18);
        }
    }
});
