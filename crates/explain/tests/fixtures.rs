//! Every fixture gets its verdict, with its figures; no damage to one makes a panic.

use std::path::{Path, PathBuf};

use plimsoll_explain::{Error, Explanation, Kind, Source, Verdict, explain};
use plimsoll_testing::Dice;

const MIB: u64 = 1 << 20;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn told(name: &str) -> Explanation {
    let bytes = std::fs::read(fixture(name)).unwrap();
    explain(&bytes[..], name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn all() -> Vec<(String, Vec<u8>)> {
    let folder = std::fs::read_dir(fixture("")).unwrap();
    let mut found: Vec<_> = folder
        .map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
        })
        .collect();
    found.sort();
    assert!(found.len() > 25);
    found
}

#[test]
fn each_report_gets_its_own_verdict() {
    let cases = [
        ("tf_capacity.log", Source::TensorFlow, Kind::Dump, Verdict::Capacity),
        ("tf_fit.log", Source::TensorFlow, Kind::Dump, Verdict::Capacity),
        ("tf_holes.log", Source::TensorFlow, Kind::Dump, Verdict::Fragmentation),
        ("tf_growth.log", Source::TensorFlow, Kind::Dump, Verdict::Growth),
        ("tf_kept.log", Source::TensorFlow, Kind::Dump, Verdict::Growth),
        ("tf_1_old.log", Source::TensorFlow, Kind::Dump, Verdict::Fragmentation),
        ("tf_error_only.txt", Source::TensorFlow, Kind::Message, Verdict::Unknown),
        ("torch_0_4.txt", Source::PyTorch, Kind::Message, Verdict::Unknown),
        ("torch_1_0_capacity.txt", Source::PyTorch, Kind::Message, Verdict::Capacity),
        ("torch_1_8_fragmentation.txt", Source::PyTorch, Kind::Message, Verdict::Fragmentation),
        ("torch_1_12_limit.txt", Source::PyTorch, Kind::Message, Verdict::Limit),
        ("torch_2_1_capacity.txt", Source::PyTorch, Kind::Message, Verdict::Capacity),
        ("torch_2_6_other_process.txt", Source::PyTorch, Kind::Message, Verdict::OtherProcess),
        ("torch_2_7_wrapped.txt", Source::PyTorch, Kind::Message, Verdict::Fragmentation),
        // Printed by PyTorch 2.11 on a card.
        ("torch_2_11_real_capacity.txt", Source::PyTorch, Kind::Message, Verdict::Capacity),
        ("torch_2_11_real_limit.txt", Source::PyTorch, Kind::Message, Verdict::Limit),
        ("torch_growth.txt", Source::PyTorch, Kind::Message, Verdict::Growth),
        ("torch_mps.txt", Source::PyTorch, Kind::Message, Verdict::Limit),
        ("torch_cpu.txt", Source::PyTorch, Kind::Message, Verdict::Unknown),
        ("torch_fragmented.p4.pickle", Source::PyTorch, Kind::Snapshot, Verdict::Fragmentation),
        ("torch_leaking.p4.pickle", Source::PyTorch, Kind::Snapshot, Verdict::Growth),
        ("jax_tpu_compile.txt", Source::Jax, Kind::Message, Verdict::Capacity),
        ("jax_gpu_buffers.txt", Source::Jax, Kind::Message, Verdict::Unknown),
        ("jax_gpu_dump.txt", Source::Jax, Kind::Dump, Verdict::Capacity),
        ("tf_gpu_growth_refused.txt", Source::TensorFlow, Kind::Dump, Verdict::OtherProcess),
        ("tf_async.txt", Source::TensorFlow, Kind::Message, Verdict::Capacity),
        ("tf_1_small_limit.txt", Source::TensorFlow, Kind::Dump, Verdict::Limit),
        ("jax_runtime.txt", Source::Jax, Kind::Message, Verdict::Capacity),
    ];
    for (name, source, kind, verdict) in cases {
        let told = told(name);
        assert_eq!((told.source, told.kind, told.verdict), (source, kind, verdict), "{name}:\n{told}");
        assert!(!told.because.is_empty(), "{name}");
        assert!(!told.advice.is_empty(), "{name}");
    }
}

#[test]
fn a_capacity_dump_is_added_up_to_the_byte() {
    let told = told("tf_capacity.log");
    // 8 MiB of images, 32 MiB of a convolution's result, a kernel of 3*3*16*64 floats and the limit of 64 MiB.
    assert_eq!(told.figures.in_use_bytes, Some(8 * MIB + 32 * MIB + 3 * 3 * 16 * 64 * 4));
    assert_eq!((told.request.asked_bytes, told.figures.limit_bytes), (Some(32 * MIB), Some(64 * MIB)));
    assert_eq!(told.figures.free_bytes, Some(64 * MIB - told.figures.in_use_bytes.unwrap()));
    assert_eq!(told.request.op.as_deref(), Some("Relu"));
    assert_eq!(
        (told.request.tensor.as_deref(), told.request.device.as_deref()),
        (Some("float[32,64,64,64]"), Some("CPU:0"))
    );
    // 22 MiB were not yet taken from the system; that is more than the largest hole.
    assert_eq!(told.figures.would_have_fitted_bytes, Some(22 * MIB));
    let batch = told.advice.iter().find(|advice| advice.what.contains("16 instead of 32")).unwrap();
    assert_eq!(batch.saves_bytes, Some(16 * MIB));
    assert!(batch.what.contains("at 22 this tensor would have fitted"), "{}", batch.what);
}

#[test]
fn holes_are_told_from_a_lack_of_bytes() {
    let told = told("tf_holes.log");
    assert_eq!(told.request.asked_bytes, Some(8 * MIB));
    assert_eq!(told.figures.largest_free_bytes, Some(4 * MIB), "TensorFlow itself prints 0 here");
    assert!(told.figures.free_bytes.unwrap() * 100 / told.figures.limit_bytes.unwrap() > 50);
    let first = &told.advice[0];
    assert!(first.what.contains("cuda_malloc_async"), "{}", first.what);
    assert_eq!(first.saves_bytes, Some(told.figures.free_bytes.unwrap() - 4 * MIB));
    let pool = told.pool.unwrap();
    assert_eq!(
        pool.columns.iter().map(|column| column.in_use_bytes).sum::<u64>(),
        told.figures.in_use_bytes.unwrap()
    );
    let empty = pool.columns.iter().filter(|column| column.in_use_bytes == 0).count();
    let full = pool.columns.iter().filter(|column| column.free_bytes == 0).count();
    assert!(empty > 20 && full > 20, "{empty} {full}");
}

#[test]
fn growth_is_shown_from_refusal_to_refusal() {
    let told = told("tf_growth.log");
    let series = told.because.iter().find(|reason| reason.contains("refusals in this log")).unwrap();
    assert!(series.contains("4 refusals"), "{series}");
    assert!(told.because.iter().any(|reason| reason.contains("chunks of 512 KiB each")), "{told}");
    assert!(told.advice[0].what.contains("keep nothing of a step"), "{told}");
}

#[test]
fn a_step_that_worked_before_points_to_growth_by_its_repeated_chunks() {
    let told = told("tf_kept.log");
    assert!(told.because.iter().any(|reason| reason.contains("had come to step 27")), "{told}");
    assert!(
        told.because.iter().any(|reason| reason.contains("28 chunks of 512 KiB each hold 14 MiB")),
        "{told}"
    );
}

#[test]
fn a_keras_model_is_pointed_to_the_planner_and_others_are_not() {
    assert!(
        told("tf_fit.log")
            .advice
            .iter()
            .any(|advice| advice.what.contains("plimsoll plan MODEL.keras --batch N --memory 67108864"))
    );
    assert!(told("tf_capacity.log").advice.iter().all(|advice| !advice.what.contains("plimsoll")));
    assert!(told("torch_2_1_capacity.txt").advice.iter().all(|advice| !advice.what.contains("plimsoll")));
}

#[test]
fn all_pickle_protocols_and_json_tell_the_same() {
    let expected = told("torch_fragmented.p4.pickle").to_string();
    for ending in ["p0.pickle", "p2.pickle", "p5.pickle", "json"] {
        assert_eq!(told(&format!("torch_fragmented.{ending}")).to_string(), expected, "{ending}");
    }
    let told = told("torch_fragmented.p4.pickle");
    assert_eq!((told.request.asked_bytes, told.figures.in_use_bytes), (Some(64 * MIB), Some(200 * MIB)));
    assert_eq!(
        (told.figures.largest_free_bytes, told.figures.would_have_fitted_bytes),
        (Some(10 * MIB), Some(40 * MIB))
    );
    assert_eq!(told.request.op.as_deref(), Some("train.py:57 attention"));
    assert_eq!(told.advice[0].saves_bytes, Some(190 * MIB));
}

#[test]
fn a_leak_is_named_with_its_line() {
    let told = told("torch_leaking.p4.pickle");
    assert!(
        told.because.iter().any(|reason| reason.contains("48 blocks made by train.py:35 remember")),
        "{told}"
    );
    assert_eq!(told.advice[0].saves_bytes, Some(96 * MIB));
}

#[test]
fn a_real_snapshot_names_the_line_of_the_script_and_not_the_allocators() {
    let text = told("torch_2_11_real.p4.pickle").to_string();
    assert!(text.contains("ongpu.py:") && !text.contains("CUDACachingAllocator"), "{text}");
}

#[test]
fn a_pickle_that_would_run_code_is_an_error_that_says_so() {
    for protocol in [0, 2, 4] {
        let name = format!("hostile.p{protocol}.pickle");
        let bytes = std::fs::read(fixture(&name)).unwrap();
        let error = explain(&bytes[..], &name).unwrap_err();
        assert!(matches!(error, Error::Code { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("print") && text.contains("nothing was run"), "{text}");
    }
}

#[test]
fn an_empty_file_and_a_strange_one_are_told_apart() {
    assert!(matches!(explain(&b" \n\n"[..], "x"), Err(Error::Empty { .. })));
    assert!(matches!(
        explain(&b"\xff\xfe nothing of interest\n"[..], "x"),
        Err(Error::Nothing { lines: 1, .. })
    ));
    assert!(matches!(explain(&b"{\"a\": 1}"[..], "x.json"), Err(Error::NoSnapshot { .. })));
    assert!(matches!(explain(&b"{\"segments\": ["[..], "x"), Err(Error::Damaged { .. })));
    let code = explain(&b"cos\nsystem\n(S'ls'\ntR."[..], "x.pkl").unwrap_err();
    assert!(code.to_string().contains("import os.system"), "{code}");
}

#[test]
fn a_log_inside_json_lines_is_read() {
    let line = r#"{"level":"error","msg":"Traceback:\n  File \"/app/train.py\", line 7, in step\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 GiB is free."}"#;
    let told = explain(line.as_bytes(), "-").unwrap();
    assert_eq!((told.verdict, told.request.asked_bytes), (Verdict::Capacity, Some(3 << 30)));
}

#[test]
fn short_wordings_are_recognised_and_other_quotas_are_not() {
    let cases = [
        (
            "Tried to allocate 20.00 MiB (GPU 0; 1.96 GiB total capacity; 1.24 GiB already allocated; 2.88 MiB free; 1.25 GiB reserved in total by PyTorch)",
            Verdict::Capacity,
        ),
        (
            "RESOURCE_EXHAUSTED: TPU TensorCore Hbm usage: 34.82G, SparseCore Hbm usage 174.10G, exceeding available bytes: 95.74G",
            Verdict::Capacity,
        ),
        (
            "RESOURCE_EXHAUSTED: Allocation (size=38654705664) would exceed memory (size=34359738368)",
            Verdict::Capacity,
        ),
        ("RESOURCE_EXHAUSTED: Failed to allocate memory", Verdict::Unknown),
    ];
    for (text, verdict) in cases {
        assert_eq!(explain(text.as_bytes(), "-").unwrap().verdict, verdict, "{text}");
    }
    assert!(matches!(
        explain(&b"RESOURCE_EXHAUSTED: Quota exceeded for requests per minute"[..], "-"),
        Err(Error::Nothing { .. })
    ));
}

#[test]
fn json_has_the_documented_keys() {
    let keys = [
        "source",
        "kind",
        "asked_bytes",
        "op",
        "tensor",
        "device",
        "limit_bytes",
        "in_use_bytes",
        "free_bytes",
        "largest_free_bytes",
        "verdict",
        "because",
        "would_have_fitted_bytes",
        "advice",
        "cannot_tell",
        "pool",
    ];
    for (name, bytes) in all() {
        let Ok(told) = explain(&bytes[..], &name) else { continue };
        let json = serde_json::to_value(&told).unwrap();
        let object = json.as_object().unwrap();
        assert_eq!(object.len(), keys.len(), "{name}");
        assert!(keys.iter().all(|key| object.contains_key(*key)), "{name}");
    }
    let json = serde_json::to_value(told("tf_holes.log")).unwrap();
    assert_eq!(
        (json["source"].as_str(), json["kind"].as_str()),
        (Some("tensorflow"), Some("allocator dump"))
    );
    assert_eq!(json["verdict"], "fragmentation");
    let document =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/explain.md")).unwrap();
    for key in
        keys.iter().chain(&["saves_bytes", "regions_total", "columns", "free_sizes", "held", "chunks_in_use"])
    {
        assert!(document.contains(&format!("`{key}`")), "docs/explain.md lacks {key}");
    }
}

#[test]
fn the_page_is_whole_by_itself() {
    let page = told("tf_holes.log").to_html();
    for part in [
        "<!doctype html>",
        "viewport",
        "prefers-color-scheme:dark",
        "role=\"img\"",
        "aria-label=\"The pool by address",
        "</html>",
    ] {
        assert!(page.contains(part), "{part}");
    }
    for part in ["<script", "http://", "https://", "src=", "@import"] {
        assert!(!page.contains(part), "{part}");
    }
    let name = "x/<b>\"evil\"</b>";
    let line = format!(
        "Allocator (a) ran out of memory trying to allocate 1.00MiB (rounded to 1048576)requested by op {name}"
    );
    let page = explain(line.as_bytes(), "-").unwrap().to_html();
    assert!(!page.contains("<b>") && page.contains("&lt;b&gt;"), "{page}");
}

#[test]
fn damaged_reports_never_panic_and_never_ramble() {
    let mut noise = Dice(0x2545_f491_4f6c_dd1d);
    let interesting: [&[u8]; 10] = [
        b"18446744073709551615",
        b"99999999999999999999.99GiB",
        b"-1",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\xff",
        b"(",
        b"",
        b"0",
        b"\n",
        b"[[",
    ];
    for (name, bytes) in all() {
        for round in 0..60 {
            let mut damaged = bytes.clone();
            match round % 4 {
                0 => damaged.truncate(noise.roll(bytes.len() + 1)),
                1 => {
                    for _ in 0..1 + noise.roll(8) {
                        let at = noise.roll(damaged.len());
                        damaged[at] = noise.roll(256) as u8;
                    }
                }
                2 => {
                    let from = noise.roll(damaged.len());
                    let to = (from + noise.roll(200)).min(damaged.len());
                    damaged.drain(from..to);
                }
                _ => {
                    let at = noise.roll(damaged.len());
                    let end = (at + noise.roll(12)).min(damaged.len());
                    damaged.splice(at..end, interesting[noise.roll(interesting.len())].iter().copied());
                }
            }
            match explain(&damaged[..], &name) {
                Ok(told) => {
                    assert!(told.to_string().len() < 1 << 16, "{name}");
                    assert!(told.to_html().len() < 1 << 18, "{name}");
                    assert!(serde_json::to_string(&told).unwrap().len() < 1 << 17, "{name}");
                }
                Err(error) => assert!(error.to_string().len() < 2048, "{name}: {error}"),
            }
        }
    }
}
