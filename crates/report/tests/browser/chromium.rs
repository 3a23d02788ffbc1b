//! A browser to test in: Debian's Chromium without a window, told what to do over a pipe (the DevTools protocol).

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use plimsoll_testing::group;
use serde_json::{Value, json};

/// How long the browser may take for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// A page in a browser of its own.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    profile: PathBuf,
    session: Option<String>,
    next: u64,
    /// What the page complained of.
    pub complaints: Vec<String>,
}

impl Browser {
    /// Starts a browser; none where none is installed.
    #[track_caller]
    pub fn start(name: &str) -> Option<Browser> {
        let path = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"]
            .into_iter()
            .find(|path| Path::new(path).exists());
        let path = group("browser", path.ok_or("no chromium is installed"))?;
        let profile =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("chromium-{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&profile).ok();
        std::fs::create_dir_all(&profile).unwrap();
        // The browser speaks over descriptors 3 and 4; a shell lends it its own standard ones.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null 2>/dev/null", "sh", path])
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--disable-dev-shm-usage", "--remote-debugging-pipe", "--window-size=1180,1000"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (send, from) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(out).split(0) {
                let Ok(message) = message else { break };
                let Ok(message) = serde_json::from_slice(&message) else { continue };
                if send.send(message).is_err() {
                    break;
                }
            }
        });
        let (session, next, complaints) = (None, 1, Vec::new());
        let mut browser = Browser { child, to, from, profile, session, next, complaints };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().map(String::from);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({}));
        }
        Some(browser)
    }

    /// Calls a method and waits for its answer; what the page complains of meanwhile is kept.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.next;
        self.next += 1;
        let mut message = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        let start = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(start.elapsed());
            let answer = self.from.recv_timeout(left).unwrap_or_else(|e| panic!("{method}: {e}"));
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.listen(&answer);
        }
    }

    fn listen(&mut self, event: &Value) {
        let params = &event["params"];
        let complaint = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => params["exceptionDetails"].to_string(),
            Some("Runtime.consoleAPICalled") if params["type"] == "error" || params["type"] == "warning" => {
                params["args"].to_string()
            }
            Some("Log.entryAdded") if params["entry"]["level"] != "info" => params["entry"].to_string(),
            _ => return,
        };
        self.complaints.push(complaint);
    }

    /// Opens a file and waits until the page says that it is drawn.
    pub fn open(&mut self, file: &Path) {
        self.call("Page.navigate", json!({ "url": format!("file://{}", file.display()) }));
        let start = Instant::now();
        while self.eval("document.documentElement?.dataset.ready === 'true'") != true {
            assert!(start.elapsed() < PATIENCE, "the page is never drawn: {:?}", self.complaints);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The value of an expression in the page.
    pub fn eval(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// A number that an expression in the page comes to.
    pub fn number(&mut self, expression: &str) -> f64 {
        let value = self.eval(expression);
        value.as_f64().unwrap_or_else(|| panic!("{expression} is {value}"))
    }

    /// Moves, presses or releases the mouse.
    pub fn mouse(&mut self, kind: &str, x: f64, y: f64) {
        let held = if kind == "mouseMoved" { "none" } else { "left" };
        let params = json!({ "type": kind, "x": x, "y": y, "button": held, "buttons": 1, "clickCount": 1 });
        self.call("Input.dispatchMouseEvent", params);
    }

    /// Types text into what has the focus.
    pub fn key(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            let mut params = json!({ "type": kind, "key": key });
            if key.chars().count() == 1 && kind == "keyDown" {
                params["text"] = json!(key);
            }
            self.call("Input.dispatchKeyEvent", params);
        }
    }

    /// Waits for the next frame to be drawn.
    pub fn frame(&mut self) {
        self.eval("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        std::fs::remove_dir_all(&self.profile).ok();
    }
}
