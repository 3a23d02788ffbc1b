//! Beside a card's memory the host's has a limit of its own, which counts everything: planned, kept, or refused with the least. On the
//! emulator where there is a C++ compiler.

use plimsoll_data::{Column, Dataset};
use plimsoll_device::{Bytes, Kind, process};
use plimsoll_nn::{Adam, Sequential, softmax_cross_entropy};
use plimsoll_run::{Device, Error as RunError, HostAccount, HostInfeasible, host_program};
use plimsoll_testing::group;
use plimsoll_train::{Epochs, Error, Trainer};

const SAMPLES: usize = 256;

fn data(batch: usize) -> Dataset {
    let x: Vec<f32> = (0..SAMPLES * 64).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    let y: Vec<i64> = (0..SAMPLES as i64).map(|i| i % 3).collect();
    let (x, y) = (Column::memory("x", x, [64]).unwrap(), Column::memory("y", y, []).unwrap());
    Dataset::columns([x, y]).unwrap().shuffle(SAMPLES, 5).batch(batch)
}

fn trainer(device: &Device, host: Option<Bytes>) -> Trainer {
    let model = Sequential::new([64]).dense(512).relu().dense(512).relu().dense(3);
    Trainer::new(model, softmax_cross_entropy, Adam::new(1e-3)).device(device.clone()).host_limit(host)
}

fn account(trainer: &Trainer, data: &Dataset) -> HostAccount {
    trainer.plan(data).unwrap().figures.host.expect("an account of the host")
}

fn refusal(trainer: &Trainer, data: &Dataset) -> HostInfeasible {
    match trainer.plan(data).map(|plan| plan.figures.host) {
        Err(Error::Run(RunError::HostInfeasible(refusal))) => *refusal,
        other => panic!("no refusal of the host: {other:?}"),
    }
}

#[test]
fn without_a_word_the_host_is_counted_against_what_the_machine_has_and_nothing_is_copied() {
    let Some(device) = group("emulator", Device::cuda_emulated(Bytes::mib(256))) else { return };
    let host = account(&trainer(&device, None), &data(64));
    assert!(!host.is_given && host.limit == process::memory_limit(), "{host:?}");
    assert_eq!(host.program, host_program(&device));
    assert_eq!((host.copies, host.state), (Bytes::ZERO, Bytes::ZERO));
    // A batch in pinned memory, and a buffer for the largest of all that goes through it: the second dense layer's weights.
    assert_eq!(host.staging, Bytes((64 * 64 * 4 + 64 * 8 + 512 * 512 * 4) as u64));
    assert!(host.pipeline > Bytes::ZERO);
    assert_eq!(host.planned(), host.program + host.pipeline + host.staging);
    let cpu = trainer(&Device::cpu_with(1, Bytes::mib(64)).unwrap(), None).plan(data(64)).unwrap();
    assert_eq!(cpu.figures.host, None, "on the CPU there is one limit");
}

#[test]
fn the_least_of_the_host_is_kept_and_one_byte_less_is_refused_by_name() {
    let Some(device) = group("emulator", Device::cuda_emulated(Bytes::mib(256))) else { return };
    let data = data(64);
    let refused = refusal(&trainer(&device, Some(Bytes::mib(1))), &data);
    let (least, text) = (refused.least, refused.to_string());
    assert_eq!(least, refused.account.beside());
    for words in
        ["a host memory limit of 1 MiB cannot be kept", "program", "pipeline", "staging", "--host-memory"]
    {
        assert!(text.contains(words), "no {words} in {text}");
    }
    let host = account(&trainer(&device, Some(least)), &data);
    assert!(host.is_given && host.planned() <= least, "{host:?} within {least}");
    let less = Bytes(least.get() - 1);
    assert_eq!(refusal(&trainer(&device, Some(less)), &data).least, least);
    // With room, pipelines take more than the least.
    let roomy = account(&trainer(&device, Some(least + Bytes::mib(64))), &data);
    assert!(roomy.pipeline > host.pipeline, "{} and {}", roomy.pipeline, host.pipeline);
    // A larger batch needs more of the host, and a smaller one is a way out.
    let model = || Sequential::new([64]).dense(8).dense(3);
    let thin = Trainer::new(model(), softmax_cross_entropy, Adam::new(1e-3));
    let thin = thin.device(device).host_limit(Some(Bytes::mib(1)));
    let refused = refusal(&thin, &self::data(256));
    let way = refused.ways.iter().find(|way| way.flag == "--batch 1").expect("a smaller batch helps");
    assert!(way.least < refused.least, "{} and {}", way.least, refused.least);
}

#[test]
fn a_plan_offloads_no_more_than_the_limit_leaves_and_trains_within_it() {
    let Some(device) = group("emulator", Device::cuda_emulated(Bytes::mib(256))) else { return };
    let data = data(64);
    let free = trainer(&device, None).plan(&data).unwrap().figures;
    let beside = free.host.unwrap().beside() + Bytes::mib(64);
    let ample = beside + Bytes::gib(1);
    // The least of the card's memory falls with what the host may hold; between the two, copies are needed.
    let least = trainer(&device, Some(ample)).plan(&data).unwrap().figures.floor;
    assert!(least < free.floor, "{least} and {}", free.floor);
    let mut last = Bytes::ZERO;
    for host in [ample, beside + Bytes::mib(3), beside + Bytes::mib(2)] {
        let card = trainer(&device, Some(host)).plan(&data).unwrap().figures.floor;
        assert!(card >= last, "less of the host asks for more of the card: {card} and {last}");
        last = card;
        let mut trainer = trainer(&device, Some(host)).memory_limit_bytes(Some(card));
        let figures = trainer.compile(&data).unwrap();
        let account = figures.host.unwrap();
        assert!(figures.host_bytes > Bytes::ZERO, "{account:?}");
        assert_eq!(account.copies + account.state, figures.host_bytes);
        assert!(account.planned() <= host, "{account:?} within {host}");
        let history = trainer.fit(&data, Epochs(1)).unwrap();
        assert!(history[0].loss.is_finite());
        let ledger = trainer.ledger().unwrap();
        let row =
            |name: &str| *ledger.row(Kind::Host, name).unwrap_or_else(|| panic!("no {name} in\n{ledger}"));
        assert_eq!(row("staging").planned, account.staging);
        let batch = row("staging").measured.unwrap();
        assert!(batch >= Bytes((64 * 64 * 4 + 64 * 8) as u64) && batch <= account.staging, "{batch}");
        assert_eq!(row("program, driver and libraries").planned, account.program);
        assert!(row("program, driver and libraries").measured > Some(Bytes::mib(1)));
        assert_eq!(row("input pipelines").planned, account.pipeline);
        // What is of the card adds up to its plan, with the host's rows beside it.
        assert_eq!(
            ledger.planned().saturating_sub(ledger.total(Kind::Host).planned),
            figures.planned,
            "\n{ledger}"
        );
    }
    // What the card lacks, more of the host would give: the refusal names all of it.
    let limit = Some(Bytes(least.get().midpoint(free.floor.get())));
    let why = trainer(&device, None).memory_limit_bytes(limit).plan(&data).map(drop).unwrap_err().to_string();
    let named = why.lines().find(|line| line.contains("--host-memory")).unwrap_or_else(|| panic!("{why}"));
    let mib: u64 = named.split_whitespace().nth(1).unwrap().strip_suffix("MiB").unwrap().parse().unwrap();
    assert!(Bytes::mib(mib) > host_program(&device), "{named}");
    let helped = trainer(&device, Some(Bytes::mib(mib))).memory_limit_bytes(limit).plan(&data);
    assert!(helped.is_ok(), "{named}: {:?}", helped.map(drop));
}
