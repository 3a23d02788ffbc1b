//! Running the command in tests: a folder of its own for each, JSON lines read back.

use std::path::{Path, PathBuf};
use std::process::Command;

pub use plimsoll_testing::child::least_of;
use serde_json::Value;

/// The command. Kernels' times are kept from run to run of a test, so that they plan alike, and apart from the user's.
pub fn plimsoll() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    let thread = std::thread::current();
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join(thread.name().unwrap_or("main"));
    command.env("PLIMSOLL_CACHE", cache);
    command
}

/// Runs the command and returns its JSON lines, or what it said was wrong.
pub fn lines(arguments: &[&str]) -> Result<Vec<Value>, String> {
    read(plimsoll().args(arguments))
}

/// Runs a command in JSON that writes to a folder of its own: the folder's parent, the folder, and what was said.
pub fn ran(name: &str, settings: &str) -> (Scratch, String, Vec<Value>) {
    let scratch = Scratch::new(name);
    let folder = scratch.path("run");
    let arguments: Vec<&str> = settings.split(' ').chain(["--json", "--out", &folder]).collect();
    let said = lines(&arguments).unwrap_or_else(|why| panic!("{settings}: {why}"));
    (scratch, folder, said)
}

/// Runs the command in a control group with a hard limit on memory, where the machine lets a test make one; the system
/// kills whatever takes more.
pub fn lines_inside(limit: u64, arguments: &[&str]) -> Result<Vec<Value>, String> {
    match Group::new(limit) {
        None => lines(arguments),
        Some(group) => {
            let mut command = Command::new("sh");
            command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(group.0.join("cgroup.procs"));
            let plimsoll = plimsoll();
            command.arg(plimsoll.get_program()).args(arguments);
            command.envs(plimsoll.get_envs().filter_map(|(name, value)| Some((name, value?))));
            read(&mut command)
        }
    }
}

/// A control group of the test's own, version 1 or 2.
struct Group(PathBuf);

impl Group {
    fn new(limit: u64) -> Option<Group> {
        let places = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        places.into_iter().find_map(|(root, file)| {
            let path = Path::new(root).join(format!("plimsoll-test-{}", std::process::id()));
            std::fs::create_dir_all(&path).ok()?;
            let group = Group(path);
            std::fs::metadata(group.0.join(file)).ok()?;
            std::fs::write(group.0.join(file), limit.to_string()).ok()?;
            Some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.0).ok();
    }
}

fn read(command: &mut Command) -> Result<Vec<Value>, String> {
    plimsoll_testing::child::lines(command).map(|said| said.lines)
}

/// A number of bytes in a line.
pub fn bytes(line: &Value, field: &str) -> u64 {
    line[field].as_u64().unwrap_or_else(|| panic!("no {field} in {line}"))
}

/// A folder that is removed when the test ends.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&path).ok();
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}
