//! Data from outside: read without a model, changed for training, by columns, and held back by class.

use crate::common::{Scratch, bytes, lines};

/// What a command that fails says.
fn refused(arguments: &[&str]) -> String {
    lines(arguments).err().unwrap_or_else(|| panic!("{arguments:?} was done"))
}

#[test]
fn data_is_read_without_a_model_inside_what_is_declared() {
    let all =
        lines(&["data", "digits", "--batch", "100", "--passes", "3", "--memory", "2MiB", "--json"]).unwrap();
    let line = &all[0];
    let passes = line["passes"].as_array().unwrap();
    assert_eq!(passes.len(), 3, "{line}");
    for pass in passes {
        assert_eq!(pass["samples"], passes[0]["samples"]);
        assert!(pass["samples_per_second"].as_f64().unwrap() > 0.0, "{line}");
    }
    assert_eq!(line["fields"][0]["shape"], serde_json::json!([8, 8, 1]));
    assert!(bytes(line, "held_bytes") <= bytes(line, "declared_bytes"), "{line}");
    assert!(bytes(line, "declared_bytes") <= 2 << 20, "{line}");
    assert!(refused(&["data", "random"]).contains("nothing is read"));
    assert!(refused(&["data", "digits", "--passes", "0"]).contains("--passes 0"));
    assert!(refused(&["data", "no/such/folder"]).contains("no/such/folder"));
}

#[test]
fn training_pictures_are_changed_and_evaluation_is_not() {
    let scratch = Scratch::new("augment");
    let train = |name: &str, more: &[&str]| {
        let out = scratch.path(name);
        let args = [
            "train", "cnn", "--data", "digits", "--take", "64", "--batch", "16", "--epochs", "1", "--out",
            &out,
        ];
        lines(&[&args[..], &["--json"], more].concat()).map(|_| out)
    };
    let out = train("mixed", &["--augment", "flip,crop:1,rotate:10,color:0.1,cutout:2,mixup:0.2"]).unwrap();
    // The run keeps what was asked for, and going on with other changes is another run.
    let settings = std::fs::read_to_string(format!("{out}/config.toml")).unwrap();
    assert!(
        settings.contains("augment = \"flip,crop:1,rotate:10,color:0.1,cutout:2,mixup:0.2\""),
        "{settings}"
    );
    let other =
        refused(&["train", "--resume", "--out", &out, "--epochs", "2", "--augment", "flip", "--json"]);
    assert!(other.contains("--augment flip"), "{other}");
    // Evaluation takes class numbers, as without changes.
    let evaluated = lines(&["evaluate", &out, "--data", "digits", "--json"]).unwrap();
    assert!(!evaluated.is_empty());
    let wrong = train("wrong", &["--augment", "flip,blur:2"]).unwrap_err();
    assert!(wrong.contains("'blur:2' is unknown"), "{wrong}");
    let large = train("large", &["--augment", "crop:8"]).unwrap_err();
    assert!(large.contains("crop:8 leaves nothing of pictures of 8 × 8"), "{large}");
}

#[test]
fn a_sample_that_cannot_be_read_ends_a_run_with_what_to_do_about_it() {
    let scratch = Scratch::new("unreadable");
    let (table, out) = (scratch.path("table.csv"), scratch.path("run"));
    let rows: String = (0..40).map(|at| format!("{};{}.5;{}\n", at % 7, at % 5, at % 2)).collect();
    std::fs::write(&table, format!("{rows}3;four;1\n")).unwrap();
    let words =
        ["train", "mlp", "--data", &table, "--classes", "2", "--epochs", "1", "--out", &out, "--json"];
    for ended in [refused(&words), refused(&["data", &table, "--json"])] {
        assert!(ended.contains("line 41, column 2: 'four' is no number (sample 40)"), "{ended}");
        assert!(ended.contains("--on-error skip leaves such samples out"), "{ended}");
    }
    let read = lines(&["data", &table, "--on-error", "skip", "--passes", "1", "--json"]).unwrap();
    assert_eq!(read[0]["skipped"], 1, "{read:?}");
}

#[test]
fn columns_are_read_by_name_and_classes_have_their_share() {
    let scratch = Scratch::new("columns");
    let table = scratch.path("people.csv");
    let rows: String = (0..60).map(|at| format!("p{at},{},{},{}\n", at % 7, at % 5, at % 10 / 5)).collect();
    std::fs::write(&table, format!("name,age,height,kind\n{rows}")).unwrap();
    let read = |columns: &str| lines(&["data", &table, "--columns", columns, "--json"]);
    assert_eq!(read("x=age,height,y=kind").unwrap()[0]["fields"][0]["shape"], serde_json::json!([2]));
    assert!(read("x=weight").unwrap_err().contains("no column 'weight'"));
    assert!(read("age").unwrap_err().contains("--columns age"));
    let out = scratch.path("run");
    let split = ["--validation-split", "0.2", "--stratified"];
    let args = [
        "train",
        "mlp",
        "--data",
        &table,
        "--columns",
        "x=age,height,y=kind",
        "--epochs",
        "1",
        "--out",
        &out,
    ];
    lines(&[&args[..], &split, &["--json"]].concat()).unwrap();
    assert!(
        refused(&["train", "mlp", "--stratified", "--json"])
            .contains("--stratified is for --validation-split")
    );
}
