//! The folder of a run: settings, plan, step, metrics, events, checkpoints, ledger and the trained model.

use std::path::{Path, PathBuf};

use crate::Failure;
use crate::config::Config;

/// A run's folder.
pub struct Folder(PathBuf);

impl Folder {
    /// The folder for a run that begins, or goes on where `resume` says so.
    pub fn begin(out: Option<&Path>, name: &str, resume: bool) -> Result<Folder, Failure> {
        let path = match out {
            Some(path) => path.to_path_buf(),
            None => next_free(name),
        };
        let folder = Folder(path);
        if folder.config().is_file() && !resume {
            let shown = folder.0.display();
            return Err(Failure(format!(
                "{shown} holds a run; go on with it by --resume, or name another folder with --out"
            )));
        }
        folder.made(std::fs::create_dir_all(&folder.0))?;
        Ok(folder)
    }

    /// The folder of a run that was.
    pub fn of(path: &Path) -> Result<Folder, Failure> {
        let folder = Folder(path.to_path_buf());
        if folder.config().is_file() {
            return Ok(folder);
        }
        let shown = path.display();
        Err(Failure(format!(
            "{shown} is no run: there is no config.toml in it; name the folder that plimsoll train wrote, or a .keras or .h5 file"
        )))
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

    pub fn ledger(&self) -> PathBuf {
        self.0.join("ledger.txt")
    }

    pub fn ledger_json(&self) -> PathBuf {
        self.0.join("ledger.json")
    }

    pub fn model(&self) -> PathBuf {
        self.0.join("model.safetensors")
    }

    /// Writes a file of the folder, whole or not at all.
    pub fn write(&self, path: &Path, text: &str) -> Result<(), Failure> {
        use std::io::Write;
        self.made(plimsoll::formats::durable::write_file(path, |out| out.write_all(text.as_bytes())))
    }

    /// Writes a record of the folder, whole or not at all, without ever holding its text.
    pub fn record(&self, path: &Path, record: &impl serde::Serialize) -> Result<(), Failure> {
        self.made(plimsoll::formats::durable::write_file(path, |out| Ok(serde_json::to_writer(out, record)?)))
    }

    /// Keeps the settings of the run.
    pub fn keep(&self, config: &Config) -> Result<(), Failure> {
        let text = toml::to_string(config).map_err(|e| Failure(e.to_string()))?;
        self.write(&self.config(), &text)
    }

    fn made<T>(&self, result: std::io::Result<T>) -> Result<T, Failure> {
        result.map_err(|e| Failure(format!("{}: {e}", self.0.display())))
    }
}

/// `runs/NAME-1` or the first number after it that is not taken.
fn next_free(name: &str) -> PathBuf {
    let mut n = 1;
    loop {
        let path = Path::new("runs").join(format!("{name}-{n}"));
        if !path.exists() {
            return path;
        }
        n += 1;
    }
}
