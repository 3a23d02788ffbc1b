//! The folder of a run: settings, plan, step, metrics, events, checkpoints, ledger and the trained model.
//!
//! A request is looked through first and a folder is touched when it has been accepted: a refused one leaves no folder behind and
//! changes no run. While a run is trained, a lock that the system holds for the process keeps others out; it ends with the
//! process, however that ends.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use crate::Failure;
use crate::config::Config;
use crate::request::is_model_file;

/// A run's folder.
pub struct Folder(PathBuf);

/// Says that this process trains the run in a folder, until it is dropped.
pub struct Lock {
    /// Held, not read: the system gives the lock back when it is closed.
    _file: File,
}

impl Folder {
    /// The folder in which a run is to begin: the named one, of which nothing is made yet, or the next free one under `runs`, which
    /// is locked so that nobody else takes it in the meantime.
    pub fn to_begin(out: Option<&Path>, name: &str) -> Result<(Folder, Option<Lock>), Failure> {
        match out {
            Some(path) => {
                let folder = Folder(path.to_path_buf());
                folder.check_free()?;
                Ok((folder, None))
            }
            None => next_free(name).map(|(folder, lock)| (folder, Some(lock))),
        }
    }

    fn check_free(&self) -> Result<(), Failure> {
        let shown = self.0.display();
        if self.config().is_file() {
            return Err(Failure(format!(
                "{shown} holds a run; go on with it by --resume, or name another folder with --out"
            )));
        }
        if let Some(file) = self.0.ancestors().find(|path| path.exists() && !path.is_dir()) {
            let file = file.display();
            return Err(Failure(format!("{file} is a file; name a folder for the run with --out")));
        }
        Ok(())
    }

    /// The folder of a run, if it is one.
    pub fn of_run(path: &Path) -> Option<Folder> {
        let folder = Folder(path.to_path_buf());
        folder.config().is_file().then_some(folder)
    }

    /// The folder of a run that another process writes, and may not have begun yet.
    pub fn at(path: PathBuf) -> Folder {
        Folder(path)
    }

    /// The folder of a run that was.
    pub fn of(path: &Path) -> Result<Folder, Failure> {
        if let Some(folder) = Folder::of_run(path) {
            return Ok(folder);
        }
        let shown = path.display();
        Err(Failure(match path.exists() {
            true => format!(
                "{shown} is no run: there is no config.toml in it; name the folder that plimsoll train wrote, or a .keras, .h5, .onnx or .pt2 file"
            ),
            false => format!(
                "there is no {shown}; name the folder that plimsoll train wrote, or a .keras, .h5, .onnx or .pt2 file"
            ),
        }))
    }

    /// Makes the folder, locks it and keeps the settings in it: the request has been accepted.
    pub fn begin(&self, config: &Config, lock: Option<Lock>) -> Result<Lock, Failure> {
        self.made(std::fs::create_dir_all(&self.0))?;
        let lock = match lock {
            Some(lock) => lock,
            None => self.lock()?,
        };
        // Another run may have been accepted here in the meantime.
        self.check_free()?;
        self.keep(config)?;
        Ok(lock)
    }

    /// Takes the folder away again if there is nothing but its lock in it: the request was not accepted.
    pub fn abandon(&self) {
        if self.is_untouched() {
            std::fs::remove_file(self.0.join("lock")).ok();
            std::fs::remove_dir(&self.0).ok();
            if let Some(runs) = self.0.parent() {
                // It stays where there are other runs in it.
                std::fs::remove_dir(runs).ok();
            }
        }
    }

    /// Whether there is at most a lock in it, as a process leaves it that was killed before its request was accepted.
    fn is_untouched(&self) -> bool {
        let entries = std::fs::read_dir(&self.0).map(|entries| entries.flatten().collect::<Vec<_>>());
        entries.is_ok_and(|entries| entries.iter().all(|entry| entry.file_name() == "lock"))
    }

    /// Keeps all other processes from training the run in this folder.
    pub fn lock(&self) -> Result<Lock, Failure> {
        let path = self.0.join("lock");
        let opened = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = self.made(opened)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut by = String::new();
                self.made(file.read_to_string(&mut by))?;
                let shown = self.0.display();
                return Err(Failure(format!(
                    "{shown} is being trained by another process{}; wait for it, end it, or name another folder with --out",
                    by.trim().parse::<u32>().map_or(String::new(), |pid| format!(" ({pid})"))
                )));
            }
            Err(TryLockError::Error(error)) => return self.made(Err(error)),
        }
        self.made(file.set_len(0).and_then(|()| file.rewind()))?;
        self.made(write!(file, "{}", std::process::id()))?;
        Ok(Lock { _file: file })
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn config(&self) -> PathBuf {
        self.0.join("config.toml")
    }

    pub fn plan(&self) -> PathBuf {
        self.0.join("plan.json")
    }

    /// The kernel times that the run's plan went by.
    pub fn times(&self) -> PathBuf {
        self.0.join("times")
    }

    pub fn step(&self) -> PathBuf {
        self.0.join("step.json")
    }

    pub fn steps(&self) -> PathBuf {
        self.0.join("steps.csv")
    }

    pub fn notices(&self) -> PathBuf {
        self.0.join("events.jsonl")
    }

    pub fn metrics(&self) -> PathBuf {
        self.0.join("metrics.csv")
    }

    pub fn events(&self) -> PathBuf {
        self.0.join("events")
    }

    pub fn checkpoints(&self) -> PathBuf {
        self.0.join("checkpoints")
    }

    /// The checkpoint of the best epoch.
    pub fn best(&self) -> PathBuf {
        self.0.join("best")
    }

    /// What each of several ranks came to.
    pub fn ranks(&self) -> PathBuf {
        self.0.join("ranks.json")
    }

    pub fn ledger(&self) -> PathBuf {
        self.0.join("ledger.txt")
    }

    pub fn ledger_json(&self) -> PathBuf {
        self.0.join("ledger.json")
    }

    /// What steps took, as it was measured.
    pub fn profile(&self) -> PathBuf {
        self.0.join("profile.json")
    }

    /// The same as a trace.
    pub fn profile_trace(&self) -> PathBuf {
        self.0.join("profile.trace.json")
    }

    pub fn model(&self) -> PathBuf {
        self.0.join("model.safetensors")
    }

    /// The average of the weights.
    pub fn average(&self) -> PathBuf {
        self.0.join("model-average.safetensors")
    }

    /// The form of the data that the model was trained on.
    pub fn form(&self) -> PathBuf {
        self.0.join("data.json")
    }

    /// The copy of the Keras file that a run was begun with.
    pub fn source_model(&self, named: &str) -> PathBuf {
        let ending = Path::new(named).extension().and_then(|end| end.to_str()).unwrap_or("keras");
        self.0.join("source").with_extension(ending)
    }

    /// The settings that the run was begun with. A Keras file is the run's own copy.
    pub fn settings(&self) -> Result<Config, Failure> {
        let mut config = Config::read(&self.config())?;
        if let Some(named) = config.model.clone() {
            let copy = self.source_model(&named);
            config.model_copy = (is_model_file(&named) && copy.is_file()).then_some(copy);
        }
        Ok(config)
    }

    /// Writes a file of the folder, whole or not at all.
    pub fn write(&self, path: &Path, text: &str) -> Result<(), Failure> {
        self.made(plimsoll::formats::durable::write_file(path, |out| out.write_all(text.as_bytes())))
    }

    /// Copies a file into the folder, whole or not at all.
    pub fn copy(&self, from: &Path, to: &Path) -> Result<(), Failure> {
        let mut source = File::open(from).map_err(|e| Failure(format!("{}: {e}", from.display())))?;
        self.made(plimsoll::formats::durable::write_file(to, |out| {
            std::io::copy(&mut source, out).map(|_| ())
        }))
    }

    /// Writes a record of the folder, whole or not at all, without ever holding its text.
    pub fn record(&self, path: &Path, record: &impl serde::Serialize) -> Result<(), Failure> {
        self.made(plimsoll::formats::durable::write_file(path, |out| Ok(serde_json::to_writer(out, record)?)))
    }

    /// Keeps the settings of the run.
    pub fn keep(&self, config: &Config) -> Result<(), Failure> {
        let text = toml::to_string(config).map_err(|e| Failure(e.to_string()))?;
        self.write(&self.config(), &format!("# plimsoll {}\n{text}", env!("CARGO_PKG_VERSION")))
    }

    fn made<T>(&self, result: std::io::Result<T>) -> Result<T, Failure> {
        result.map_err(|e| Failure(format!("{}: {e}", self.0.display())))
    }
}

/// `runs/NAME-1` or the first number after it that nobody has.
fn next_free(name: &str) -> Result<(Folder, Lock), Failure> {
    let runs = Path::new("runs");
    std::fs::create_dir_all(runs).map_err(|e| Failure(format!("{}: {e}", runs.display())))?;
    let mut n = 1;
    loop {
        let folder = Folder(runs.join(format!("{name}-{n}")));
        n += 1;
        match std::fs::create_dir(&folder.0) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => folder.made(made)?,
        }
        // Looked at again once it is locked: somebody else may have begun there, and ended, in between.
        if folder.is_untouched()
            && let Ok(lock) = folder.lock()
            && folder.is_untouched()
        {
            return Ok((folder, lock));
        }
    }
}
