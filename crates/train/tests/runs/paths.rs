//! Folders whose names are not UTF-8.
#![cfg(unix)]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use plimsoll_train::{
    Checkpoint, Checkpoints, CsvLog, Epochs, JsonLines, NoticeLog, ProgressBar, StepLog, TensorBoardLog,
};

use super::{Scratch, damage, data, trainer, weights};

#[test]
fn a_run_in_a_folder_whose_name_is_not_utf_8_is_a_run_like_any_other() {
    let scratch = Scratch::new("odd-path");
    let folder = scratch.0.join(OsString::from_vec(b"r\xff\xfen".to_vec()));
    std::fs::create_dir(&folder).unwrap();
    let model = folder.join(OsString::from_vec(b"m\xffdel".to_vec()));
    let run = || {
        trainer()
            .checkpoints(Checkpoints::new(&folder).every(2))
            .callback(JsonLines::new().run(&folder))
            .callback(ProgressBar::new())
            .callback(CsvLog::new(folder.join("metrics.csv")))
            .callback(TensorBoardLog::new(folder.join("events")))
            .callback(StepLog::new(folder.join("steps.csv")))
            .callback(NoticeLog::new(folder.join("events.jsonl")))
    };
    let mut first = run();
    first.fit(data(), Epochs(2)).unwrap();
    first.save(&model).unwrap();
    let newest = Checkpoint::newest(&folder).unwrap().unwrap();
    damage(&newest.join("state.safetensors"));
    let mut again = run();
    assert!(again.resume(&folder, &data()).unwrap());
    again.fit(data(), Epochs(2)).unwrap();
    assert_eq!(weights(&again), weights(&first));
    let mut loaded = trainer();
    loaded.load(&model, &data()).unwrap();
    assert_eq!(weights(&loaded), weights(&first));
    let notices = std::fs::read_to_string(folder.join("events.jsonl")).unwrap();
    let events: Vec<serde_json::Value> =
        notices.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for event in ["started", "saved", "ended", "damaged", "resumed"] {
        assert!(events.iter().any(|line| line["event"] == event), "no {event} in {notices}");
    }
}

#[test]
fn a_log_of_epochs_goes_on_in_the_columns_that_it_has() {
    let scratch = Scratch::new("columns");
    let path = scratch.join("metrics.csv");
    // As an older program wrote it, with a metric that is not counted any more.
    std::fs::write(&path, "epoch,step,loss,mae,rate\n1,6,0.5,0.25,0.01\n").unwrap();
    trainer().callback(CsvLog::new(&path)).fit(data(), Epochs(2)).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows.len(), 4);
    assert!(rows.iter().all(|row| row.len() == 5), "{text}");
    assert_eq!((rows[3][0], rows[3][1], rows[3][3], rows[3][4]), ("2", "12", "", "0.01"));
}
