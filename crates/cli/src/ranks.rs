//! Turns the environment of a process, or `--ranks N`, into one of several ranks that train together.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use plimsoll::internals::graph::counted;
use plimsoll::internals::graph::ops::Rank;
use plimsoll::internals::run::Error as RunError;
use plimsoll::nn::Parallel;
use plimsoll::prelude::*;
use plimsoll::ranks::{
    Communicator, Connected, Imagined, Launch, Machine, OnCards, Peers, RANK_TIMEOUT, Ranks, connect_as,
};

use crate::config::Config;
use crate::request::is_onnx;
use crate::session::Session;
use crate::{Failure, Stop, device_args, strategies};

/// How long ranks wait for each other to be started.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long ranks that this one started may take to end after it.
const LAST: Duration = Duration::from_secs(20);
/// The longest path of a folder that ranks tell each other.
const PATH_BYTES: usize = 4096;
/// More ranks on one machine are a mistake.
const MOST: usize = 256;

/// Whether a way to share a training is known, and can be taken.
pub fn check(config: &Config) -> Result<(), Failure> {
    let Some(asked) = config.parallel.as_deref() else { return Ok(()) };
    if asked == "auto" {
        return Ok(());
    }
    let way: Parallel = asked
        .parse()
        .map_err(|why| Failure(format!("--parallel {asked} is not known: {why}; auto chooses one")))?;
    // An ONNX file is written from one message with all tensors in it, which a rank may have no room for.
    let is_divided = !matches!(way, Parallel::Data | Parallel::Shard);
    if let Some(model) = config.model.as_deref().filter(|model| is_divided && is_onnx(model)) {
        return Err(Failure(format!(
            "--parallel {asked} cannot write {model} back, of whose parameters no rank has all; take --parallel shard"
        )));
    }
    Ok(())
}

/// What ranks have of each other's by a request that was checked. What is not settled yet is data.
pub fn parallel(config: &Config) -> Parallel {
    config.parallel.as_deref().and_then(|asked| asked.parse().ok()).unwrap_or_default()
}

/// Says that a way to share a training is of no use where nobody is there to share it with.
pub fn remark_on_one(config: &Config, instead: &str) {
    if let Some(asked) = config.parallel.as_deref().filter(|asked| *asked != "auto") {
        eprintln!("plimsoll: --parallel {asked} changes nothing on one rank; {instead}");
    }
}

/// A device as the first of so many ranks that are only planned for: on this machine, or on so many of the record of one.
pub fn imagined(
    device: Device,
    config: &Config,
    ranks: Option<usize>,
    nodes: Option<usize>,
) -> Result<(Device, Option<Imagined>), Failure> {
    let machine = config.device.as_deref().and_then(Machine::known);
    if nodes.is_some() && machine.is_none() {
        return Err(Failure(
            "--nodes is of machines that are not here; name the record of one (--device h200)".into(),
        ));
    }
    match ranks {
        Some(ranks @ 2..) if machine.is_some() => {
            let Some(machine) = machine else { return Ok((device, None)) };
            let imagined = Imagined::on(&machine, Rank::new(0, ranks), nodes).map_err(Failure)?;
            Ok((device.with_ranks(Arc::new(imagined)), Some(imagined)))
        }
        None | Some(1) => {
            remark_on_one(config, "--ranks N plans for several");
            Ok((device, None))
        }
        Some(0) => Err(Failure("--ranks 0 means nothing; 1 is the least".into())),
        Some(ranks) => {
            // Each has a card of its own where there are as many; otherwise they share them, and exchange values in the host's memory.
            let has_cards = device.has_own_memory() && ranks <= Device::cards();
            if let Some(machine) = has_cards.then(|| Machine::of_card(&device.properties().model)).flatten() {
                let imagined = Imagined::on(&machine, Rank::new(0, ranks), Some(1)).map_err(Failure)?;
                return Ok((device.with_ranks(Arc::new(imagined)), Some(imagined)));
            }
            let imagined = Imagined::here(Rank::new(0, ranks))?;
            Ok((device.with_ranks(Arc::new(imagined)), Some(imagined)))
        }
    }
}

/// What is planned of ranks, in words.
pub fn text(imagined: &Imagined, batch: usize) -> String {
    let (Rank { ranks, .. }, link) = (imagined.rank(), imagined.link());
    let topology = imagined.topology();
    if !imagined.is_on_host() {
        return format!(
            "as rank 0 of {ranks}, {} on each of {}, with {} of {batch} samples where they share a batch; by the record a card sends {:.0} GB/s to others of its machine, \
             {:.1} GB/s to other machines",
            topology.per_machine,
            counted(topology.machines, "machine"),
            imagined.rank().shard(batch).len(),
            topology.inside.bandwidth / 1e9,
            topology.between.bandwidth / 1e9
        );
    }
    format!(
        "as rank 0 of {ranks}, with {} of {batch} samples where they share a batch; between two threads here a message takes {:.1} us and goes at {:.1} GB/s",
        imagined.rank().shard(batch).len(),
        link.latency * 1e6,
        link.bandwidth / 1e9
    )
}

/// What a rank has to say, with its number where it is not the first, which speaks for all.
fn by_rank(rank: usize, why: &str) -> String {
    match rank {
        0 => why.to_string(),
        _ => format!("rank {rank}: {why}"),
    }
}

/// The ranks that this process is one of, and those that it started.
#[derive(Default)]
pub struct World {
    peers: Option<Arc<Connected<Ranks>>>,
    timeout: Duration,
    /// What connects their cards, where that is not what connects them.
    cards_by: OnceLock<String>,
    started: Vec<Child>,
}

impl World {
    /// Joins the ranks that a launcher started with this one, or starts as many as `--ranks` says; else it is the only one.
    pub fn join(config: &mut Config, session: &Session) -> Result<World, Failure> {
        let timeout = session.rank_timeout()?.unwrap_or(RANK_TIMEOUT);
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let launch = Launch::of(variable, PATIENCE.min(timeout))?;
        let (launch, started) = match (launch, session.ranks) {
            (Launch::One, Some(ranks @ 2..)) => start(ranks, config, PATIENCE.min(timeout))?,
            (launch, _) => (launch, Vec::new()),
        };
        let mut world = World { peers: None, timeout, cards_by: OnceLock::new(), started };
        if launch == Launch::One {
            remark_on_one(config, "--ranks N starts several here, mpirun on several machines");
            return Ok(world);
        }
        let ranks: Ranks = connect_as(&launch, timeout)?;
        let rank = Communicator::rank(&ranks);
        // The first may have stopped already while this one still measures what connects them.
        let peers = Connected::new(ranks).map_err(|why| Failure(by_rank(rank, &why.to_string())))?;
        let found = Peers::rank(&peers).ranks;
        if let Some(asked) = session.ranks.filter(|asked| *asked != found) {
            let why =
                format!("--ranks {asked} is asked for, and the launcher started {found}; leave --ranks out");
            peers.stop(&why);
            return Err(Failure(by_rank(rank, &why)));
        }
        world.peers = Some(Arc::new(peers));
        Ok(world)
    }

    /// The settings with the way to share the training that fits on all ranks and is the fastest, where that is asked for; and why it is this one.
    pub fn settled(&self, config: Config, device: &Device) -> Result<(Config, Option<String>), Failure> {
        let Some(peers) = self.several() else { return Ok((config, None)) };
        if config.parallel.as_deref() != Some("auto") {
            return Ok((config, None));
        }
        let is_on_host = device.ranks().is_none_or(|peers| peers.is_on_host());
        let mut ways = strategies::built(1);
        // Between cards there are no groups of ranks.
        ways.retain(|way| is_on_host || way.parse::<Parallel>().is_ok_and(|way| way.groups().is_none()));
        let found = strategies::plan_each(&ways, &config, device, &strategies::of_setup)?;
        // All ranks decide by the same numbers: a way fits where it does on all of them, and takes as long as on the slowest. What is not known is less than nothing.
        let Rank { rank, ranks, .. } = peers.rank();
        let mut numbers = vec![0.0; found.len() * ranks];
        for (way, plan) in found.iter().enumerate() {
            numbers[way * ranks + rank] = plan.as_ref().map_or(-1.0, |p| p.predicted_seconds);
        }
        peers.sum(&mut numbers).map_err(|fault| Failure(fault.why))?;
        let slowest = |of_way: &[f64]| {
            let fits = of_way.iter().all(|seconds| *seconds >= 0.0);
            fits.then(|| of_way.iter().copied().fold(0.0, f64::max))
        };
        let seconds: Vec<Option<f64>> = numbers.chunks(ranks).map(slowest).collect();
        let (name, why) = strategies::choose(&ways, &seconds);
        Ok((Config { parallel: Some(name), ..config }, Some(why)))
    }

    /// Which rank this is, and of how many.
    pub fn rank(&self) -> Rank {
        self.peers.as_ref().map_or(Rank::ONLY, |peers| peers.rank())
    }

    /// Whether this rank prints and writes.
    pub fn is_first(&self) -> bool {
        self.rank().rank == 0
    }

    /// The folder of the run, which only the first rank knows where it is not named: it says it, and the others hear it.
    pub fn folder(&self, own: Option<&Path>) -> Result<PathBuf, RunError> {
        let mut text = own.map(|path| path.to_string_lossy().into_owned().into_bytes()).unwrap_or_default();
        text.resize(PATH_BYTES, 0);
        if let Some(peers) = self.several() {
            peers.of_rank(0, &mut text).map_err(RunError::Ranks)?;
        }
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        Ok(PathBuf::from(String::from_utf8_lossy(&text[..end]).into_owned()))
    }

    /// The others, as trainers and devices know them, where there are any.
    fn several(&self) -> Option<&dyn Peers> {
        let peers: &dyn Peers = self.peers.as_deref()?;
        Some(peers).filter(|peers| peers.rank().ranks > 1)
    }

    /// The device that settings name: where they name no card by number, each rank of a machine has another one as far as there are any.
    pub fn open(&self, config: &Config) -> Result<Device, Failure> {
        let Some(peers) = self.peers.as_ref().filter(|_| config.device.as_deref() == Some("cuda")) else {
            return device_args::device(config);
        };
        let card = peers.place_on_machine()? % Device::cards().max(1);
        device_args::device(&Config { device: Some(format!("cuda:{card}")), ..config.clone() })
    }

    /// The device as one of these ranks. Values of cards go from card to card where each rank has its own, and through the host otherwise.
    pub fn on(&self, device: Device, config: &Config) -> Result<Device, Failure> {
        let rank = self.rank().rank;
        if rank > 0 {
            // The first says how far the timing of kernels has come; what another has to remark carries its number.
            device.on_timing(|_, _, _| {});
            device.on_remark(move |remark| eprintln!("plimsoll: rank {rank}: {remark}"));
        }
        let Some(peers) = &self.peers else { return Ok(device) };
        if self.several().is_some() && device.has_own_memory() {
            let cards = match parallel(config).groups() {
                Some(_) => Err("NCCL is not asked for groups of ranks".into()),
                None => OnCards::connect(peers.clone(), device.shared_backend(), self.timeout)?,
            };
            match cards {
                Ok(cards) => {
                    self.cards_by.get_or_init(|| cards.by().to_string());
                    return Ok(device.with_ranks(Arc::new(cards)));
                }
                Err(why) if rank == 0 => {
                    eprintln!("plimsoll: what ranks exchange goes through the host's memory: {why}");
                }
                Err(_) => {}
            }
        }
        // What a library takes counts of one that is alone, too.
        Ok(match self.several().is_some() || peers.own_bytes() > Bytes::ZERO {
            true => device.with_ranks(peers.clone()),
            false => device,
        })
    }

    /// What connects them, in words; nothing where there is one.
    pub fn text(&self, config: &Config) -> Option<String> {
        let peers = self.several()?;
        let n = peers.rank().ranks;
        let each = match parallel(config) {
            Parallel::Data => "all of the model",
            Parallel::Shard => "all parameters, its shard of gradients and of the optimizer's state",
            Parallel::Parameters => "its shard of parameters, gradients and the optimizer's state",
            Parallel::Tensor => "its part of the weights",
            Parallel::Pipeline => "a stage of the model",
            Parallel::DataTensor(_) => "its part of the weights of its group",
            Parallel::DataPipeline(_) => "a stage of the model of its group",
        };
        let batch = match parallel(config).groups() {
            Some(_) => "its group's share",
            None if parallel(config).samples_of(peers.rank()).ranks == 1 => "all",
            None => "its share",
        };
        let groups = parallel(config).groups().map_or(String::new(), |groups| format!(" in {groups} groups"));
        Some(format!(
            "{n} ranks{groups} by {}, each with {each} and {batch} of every batch",
            self.cards_by.get().map_or(peers.by(), String::as_str)
        ))
    }

    /// Ends this rank as what it did came to: where that failed the others hear why, and what another than the first says carries its number.
    pub fn end(self, mut done: Result<(), Stop>) -> Result<(), Stop> {
        let rank = self.rank().rank;
        if let Err(Stop::Failed(why) | Stop::Usage(why)) = &mut done {
            if let Some(peers) = &self.peers {
                peers.stop(why);
            }
            *why = by_rank(rank, why);
        }
        let left = self.leave();
        done?;
        Ok(left?)
    }

    /// Lets go of the others, and waits for those that it started; whether all of them ended well.
    fn leave(mut self) -> Result<(), Failure> {
        drop(self.peers.take());
        let until = Instant::now() + LAST;
        let mut failed = Vec::new();
        for (i, child) in self.started.iter_mut().enumerate() {
            let rank = i + 1;
            loop {
                match child.try_wait() {
                    Ok(Some(status)) if status.success() => break,
                    Ok(Some(status)) => {
                        failed.push(format!("rank {rank} ended with {status}"));
                        break;
                    }
                    Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
                    _ => {
                        child.kill().ok();
                        child.wait().ok();
                        failed.push(format!("rank {rank} did not end and was killed"));
                        break;
                    }
                }
            }
        }
        self.started.clear();
        if failed.is_empty() { Ok(()) } else { Err(Failure(failed.join("; "))) }
    }
}

impl Drop for World {
    /// Ranks that this one started do not outlive it.
    fn drop(&mut self) {
        drop(self.peers.take());
        for child in &mut self.started {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// Starts the other ranks as processes of this command, with the same words; this process is the first.
fn start(ranks: usize, config: &mut Config, patience: Duration) -> Result<(Launch, Vec<Child>), Failure> {
    if ranks > MOST {
        return Err(Failure(format!("--ranks {ranks} is too much for one machine; {MOST} is the most")));
    }
    let program = std::env::current_exe()?;
    if program.file_stem().is_none_or(|name| name != "plimsoll") {
        return Err(Failure(format!(
            "--ranks starts the plimsoll command once more, and this is {}; start ranks with mpirun, torchrun or srun",
            program.display()
        )));
    }
    let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    // They share the processors, unless somebody says otherwise.
    let said = config.threads;
    let each = *config.threads.get_or_insert((device_args::threads(config) / ranks).max(1));
    let mut started = Vec::new();
    for rank in 1..ranks {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1)).stdin(Stdio::null()).stdout(Stdio::null());
        if said.is_none() {
            command.args(["--threads".to_string(), each.to_string()]);
        }
        let number = |n: usize| n.to_string();
        command.envs([
            ("RANK", number(rank)),
            ("WORLD_SIZE", number(ranks)),
            ("MASTER_PORT", port.to_string()),
        ]);
        command.envs([("MASTER_ADDR", "127.0.0.1"), ("PLIMSOLL_RANKS", "tcp")]);
        started.push(command.spawn()?);
    }
    Ok((Launch::tcp(0, ranks, format!("127.0.0.1:{port}"), patience), started))
}
