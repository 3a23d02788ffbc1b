//! Turns a PyTorch memory snapshot, as plain values, into an explanation.
//!
//! A snapshot lists the segments taken from the card with the blocks in them and, where history was recorded, every allocation
//! and release. Replaying that history shows growth: what stays allocated at the lowest point of each stretch of it.

use std::collections::{BTreeMap, HashMap};

use crate::bytes::{Size, percent, short};
use crate::card::{Figures, judge, keep_nothing, shrink};
use crate::explanation::{Explanation, Kind, PoolSummary, Source, Verdict};
use crate::pool::{Chunk, Pool};
use crate::value::{Id, Values};

/// The most blocks and trace entries that are looked at. Values may be shared, so a small file can list more than that.
const ENTRIES: u64 = 20_000_000;
/// Into how many stretches a history is cut to see growth; the first ones may still build the state.
const STRETCHES: usize = 8;
const BUILDING: usize = 2;

/// Explains a snapshot, or says why it is none.
pub(crate) fn explain(values: &Values, root: Id) -> Result<Explanation, String> {
    within(values, root, ENTRIES)
}

fn within(values: &Values, root: Id, entries: u64) -> Result<Explanation, String> {
    Reader { values, sites: HashMap::new(), left: entries }.explain(root)
}

struct Reader<'a> {
    values: &'a Values,
    /// Stack traces are shared between blocks; each is put into words once.
    sites: HashMap<Id, Option<String>>,
    left: u64,
}

/// The last refusal in a history.
struct Refusal {
    asked: Option<u64>,
    free: Option<u64>,
    op: Option<String>,
}

/// What a history shows to stay: where it was made, how often, how many bytes, over how many stretches.
struct Growth {
    first: u64,
    last: u64,
    site: Option<String>,
    count: u64,
    bytes: u64,
}

impl Reader<'_> {
    fn explain(mut self, root: Id) -> Result<Explanation, String> {
        let values = self.values;
        let segments = match values.list(root) {
            Some(segments) => segments,
            None => {
                let segments = values.get(root, "segments").ok_or("it has no `segments`")?;
                values.list(segments).ok_or("its `segments` are no list")?
            }
        };
        if let Some(first) = segments.first()
            && values.get(*first, "blocks").is_none()
        {
            return Err("its segments have no `blocks`".to_string());
        }
        let traces: Vec<Id> = values.list_of(root, "device_traces").iter().copied().take(1024).collect();
        let device = self.device(segments, &traces)?;
        let mut to = Explanation::new(Source::PyTorch, Kind::Snapshot);
        to.request.device = Some(format!("GPU {device}"));
        let (pool, pending) = self.pool(segments, device)?;
        let trace = usize::try_from(device)
            .ok()
            .and_then(|i| traces.get(i))
            .and_then(|id| values.list(*id))
            .unwrap_or(&[]);
        let refusal = self.refusal(trace)?;
        to.figures.in_use_bytes = Some(pool.used);
        to.figures.largest_free_bytes = Some(pool.largest_free);
        to.figures.free_bytes = Some(pool.free);
        to.pool = PoolSummary::of(&pool);
        match &refusal {
            Some(refusal) => {
                to.request.asked_bytes = refusal.asked;
                to.request.op = refusal.op.clone();
                self.judge(&mut to, refusal, &pool);
            }
            None => to.because.push(format!(
                "the snapshot records no refusal; {} are in use and {} are held unused ({} % of the pool), the largest piece {}",
                Size(pool.used),
                Size(pool.free),
                percent(pool.free, pool.bytes()),
                Size(pool.largest_free)
            )),
        }
        if pending > 0 {
            to.because.push(format!("{} wait for another stream before they are free", Size(pending)));
        }
        match self.growth(trace)? {
            Some(growth) => grown(&mut to, &growth),
            None if trace.is_empty() => to.cannot_tell.push(
                "whether something grows: no history was recorded (torch.cuda.memory._record_memory_history())".to_string(),
            ),
            None => {}
        }
        for (size, by, holder) in pool.heaviest(3) {
            if let Some(by) = by {
                to.because.push(format!(
                    "{} in {} {} of {} are held by {by}",
                    Size(holder.bytes),
                    holder.count,
                    if holder.count == 1 { "block" } else { "blocks" },
                    Size(size)
                ));
            }
        }
        to.cannot_tell
            .push("what other processes hold of the card: a snapshot knows only its own".to_string());
        self.settings(&mut to, root);
        shrink(&mut to);
        Ok(to.finish())
    }

    fn spend(&mut self, entries: usize) -> Result<(), String> {
        self.left =
            self.left.checked_sub(entries as u64).ok_or("it lists more entries than any snapshot has")?;
        Ok(())
    }

    /// The device that last refused something; without one, the one with most memory.
    fn device(&mut self, segments: &[Id], traces: &[Id]) -> Result<u64, String> {
        let mut latest = None;
        for (device, trace) in traces.iter().enumerate() {
            let entries = self.values.list(*trace).unwrap_or(&[]);
            self.spend(entries.len())?;
            let refused =
                entries.iter().rev().find(|entry| self.values.text_of(**entry, "action") == Some("oom"));
            if let Some(entry) = refused {
                let time = self.values.integer_of(*entry, "time_us").unwrap_or(0);
                latest = latest.max(Some((time, device as u64)));
            }
        }
        if let Some((_, device)) = latest {
            return Ok(device);
        }
        self.spend(segments.len())?;
        let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
        for segment in segments {
            let device = self.values.integer_of(*segment, "device").unwrap_or(0);
            if sizes.len() < 1024 || sizes.contains_key(&device) {
                let size = sizes.entry(device).or_default();
                *size = size.saturating_add(self.values.integer_of(*segment, "total_size").unwrap_or(0));
            }
        }
        Ok(sizes
            .into_iter()
            .max_by_key(|(device, size)| (*size, std::cmp::Reverse(*device)))
            .map_or(0, |(device, _)| device))
    }

    /// The device's segments as a pool, and the bytes in it that wait for another stream.
    fn pool(&mut self, segments: &[Id], device: u64) -> Result<(Pool, u64), String> {
        let values = self.values;
        self.spend(segments.len())?;
        let mut own: Vec<(u64, Id)> = segments
            .iter()
            .filter(|segment| values.integer_of(**segment, "device").unwrap_or(0) == device)
            .map(|segment| (values.integer_of(*segment, "address").unwrap_or(0), *segment))
            .collect();
        own.sort_unstable();
        let mut pool = Pool::default();
        let mut pending = 0u64;
        for (address, segment) in own {
            pool.region();
            let blocks = values.list_of(segment, "blocks");
            self.spend(blocks.len())?;
            let mut at = address;
            for block in blocks {
                let size = values.integer_of(*block, "size").ok_or("a block has no `size`")?;
                let state = values.text_of(*block, "state").unwrap_or("");
                // Before 2.0 a block's stack trace was inside a list of its allocations.
                let frames = values.get(*block, "frames").or_else(|| {
                    let last = *values.list_of(*block, "history").last()?;
                    values.get(last, "frames")
                });
                let used = state != "inactive";
                let owner = if used { frames.and_then(|frames| self.site(frames)) } else { None };
                let address = values.integer_of(*block, "address").unwrap_or(at);
                pool.add(&Chunk { address, size, used, owner: owner.as_deref(), step: None });
                if used && state != "active_allocated" {
                    pending = pending.saturating_add(size);
                }
                at = address.saturating_add(size);
            }
        }
        Ok((pool, pending))
    }

    /// The innermost frame of the user's own code.
    fn site(&mut self, frames: Id) -> Option<String> {
        if let Some(site) = self.sites.get(&frames) {
            return site.clone();
        }
        let values = self.values;
        let of = |frame: Id| {
            let path = values.text_of(frame, "filename").unwrap_or("");
            let file = path.rsplit(['/', '\\']).next().unwrap_or(path);
            let name = values.text_of(frame, "name").unwrap_or("");
            short(&format!("{file}:{} {name}", values.integer_of(frame, "line").unwrap_or(0)))
        };
        let list = values.list(frames)?;
        let own = list.iter().take(200).find(|frame| {
            let path = values.text_of(**frame, "filename").unwrap_or("??");
            // Frames of C++ without debug information have no file.
            !path.is_empty()
                && !["site-packages", "dist-packages", "/torch/", "??", ".cpp", ".cc", "/lib/python"]
                    .iter()
                    .any(|part| path.contains(part))
        });
        let site = own.or(list.first()).map(|frame| of(*frame));
        self.sites.insert(frames, site.clone());
        site
    }

    fn refusal(&mut self, trace: &[Id]) -> Result<Option<Refusal>, String> {
        self.spend(trace.len())?;
        let values = self.values;
        let last = trace.iter().rev().find(|entry| values.text_of(**entry, "action") == Some("oom"));
        Ok(last.map(|entry| Refusal {
            asked: values.integer_of(*entry, "size"),
            free: values.integer_of(*entry, "device_free"),
            op: values.get(*entry, "frames").and_then(|frames| self.site(frames)),
        }))
    }

    fn judge(&self, to: &mut Explanation, refusal: &Refusal, pool: &Pool) {
        if let Some(asked) = refusal.asked
            && pool.largest_free >= asked
        {
            to.verdict = Verdict::Fragmentation;
            to.because.push(format!(
                "a free piece of {} is in the pool, enough for {}, but it belongs to another stream, to a private pool or to the \
                 pool of small blocks",
                Size(pool.largest_free),
                Size(asked)
            ));
            to.advise(
                "run on one stream, or release captured graphs whose pools hold free blocks",
                Some(pool.free),
            );
            return;
        }
        let figures = Figures {
            asked: refusal.asked,
            total: None,
            free: refusal.free,
            allocated: Some(pool.used),
            idle: Some(pool.free),
            allowed: None,
            own: None,
            others: None,
            largest_idle: Some(pool.largest_free),
        };
        judge(to, &figures);
    }

    /// Replays a history: what is allocated at the lowest point of each stretch, and who made what stayed.
    fn growth(&mut self, trace: &[Id]) -> Result<Option<Growth>, String> {
        if trace.len() < 8 * STRETCHES {
            return Ok(None);
        }
        self.spend(trace.len())?;
        let values = self.values;
        let mut live: HashMap<u64, (u64, Option<Id>, usize)> = HashMap::new();
        let mut lowest = [i128::MAX; STRETCHES];
        let mut bytes = 0i128;
        for (i, entry) in trace.iter().enumerate() {
            let stretch = i * STRETCHES / trace.len();
            let address = values.integer_of(*entry, "addr").unwrap_or(0);
            let size = values.integer_of(*entry, "size").unwrap_or(0);
            match values.text_of(*entry, "action") {
                Some("alloc") => {
                    bytes += i128::from(size);
                    live.insert(address, (size, values.get(*entry, "frames"), stretch));
                }
                Some("free_completed") => {
                    bytes -= i128::from(size);
                    live.remove(&address);
                }
                _ => {}
            }
            if let Some(low) = lowest.get_mut(stretch) {
                *low = (*low).min(bytes);
            }
        }
        let later = lowest.get(BUILDING..).unwrap_or(&[]);
        let rises = later.windows(2).all(|pair| matches!(pair, [before, after] if after > before));
        let (Some(&first), Some(&last)) = (later.first(), later.last()) else { return Ok(None) };
        if !rises || last - first < 1 << 20 || (last - first) * 20 < last {
            return Ok(None);
        }
        // Who made what is still there, in most of the later stretches.
        let mut makers: HashMap<Option<Id>, (u64, u64, u8)> = HashMap::new();
        for (size, frames, stretch) in live.into_values().filter(|(_, _, stretch)| *stretch >= BUILDING) {
            let maker = makers.entry(frames).or_default();
            maker.0 += 1;
            maker.1 = maker.1.saturating_add(size);
            maker.2 |= 1 << stretch.min(7);
        }
        // Traces of one place may be listed apart; they are joined by their words.
        let mut sites: BTreeMap<Option<String>, (u64, u64, u8)> = BTreeMap::new();
        for (frames, (count, bytes, stretches)) in makers {
            let site = sites.entry(frames.and_then(|frames| self.site(frames))).or_default();
            *site = (site.0 + count, site.1.saturating_add(bytes), site.2 | stretches);
        }
        let steady = sites.into_iter().filter(|(_, (_, _, stretches))| stretches.count_ones() >= 4);
        let heaviest = steady.max_by_key(|(_, (_, bytes, _))| *bytes);
        let (site, (count, held, _)) = heaviest.unwrap_or_default();
        let unsigned = |value: i128| u64::try_from(value.max(0)).unwrap_or(u64::MAX);
        Ok(Some(Growth { first: unsigned(first), last: unsigned(last), site, count, bytes: held }))
    }

    fn settings(&self, to: &mut Explanation, root: Id) {
        let values = self.values;
        let settings = values.get(root, "allocator_settings");
        let expandable = settings.and_then(|id| values.get(id, "expandable_segments"));
        if expandable.is_some_and(|id| matches!(values.node(id), crate::value::Node::Bool(true))) {
            to.because.push("expandable segments are already on".to_string());
            to.advice.retain(|advice| !advice.what.contains("expandable_segments:True"));
        }
    }
}

fn grown(to: &mut Explanation, growth: &Growth) {
    let who = growth.site.as_deref().map_or(String::new(), |site| {
        format!(
            "; {} made by {site} since then {} still there, {} in all",
            if growth.count == 1 { "1 block".to_string() } else { format!("{} blocks", growth.count) },
            if growth.count == 1 { "is" } else { "are" },
            Size(growth.bytes)
        )
    });
    to.because.push(format!(
        "the lowest point of what is allocated rises through the whole history, by {} in its last three quarters{who}",
        Size(growth.last.saturating_sub(growth.first))
    ));
    if matches!(to.verdict, Verdict::Capacity | Verdict::Unknown) {
        to.verdict = Verdict::Growth;
        keep_nothing(to, Some(growth.bytes.max(growth.last.saturating_sub(growth.first))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, entries: u64) -> Result<Explanation, String> {
        let mut values = Values::new(64 << 20);
        let root = crate::json::read(text.as_bytes(), &mut values).unwrap();
        within(&values, root, entries)
    }

    /// A history of steps that each allocate 8 MiB and free it, and keep some bytes.
    fn history(keep: u64) -> String {
        let step = |i: u64| {
            let kept = format!("{{\"action\":\"alloc\",\"addr\":{},\"size\":{keep}}}", 1000 + i);
            let work = "{\"action\":\"alloc\",\"addr\":1,\"size\":8388608},{\"action\":\"free_completed\",\"addr\":1,\"size\":8388608}";
            format!("{kept},{work}")
        };
        let steps: Vec<String> = (0..64).map(step).collect();
        format!("{{\"segments\":[],\"device_traces\":[[{}]]}}", steps.join(","))
    }

    #[test]
    fn what_is_freed_every_step_is_no_growth() {
        assert_eq!(of(&history(0), ENTRIES).unwrap().verdict, Verdict::Unknown);
        assert_eq!(of(&history(1 << 20), ENTRIES).unwrap().verdict, Verdict::Growth);
    }

    #[test]
    fn a_list_of_segments_from_before_there_were_histories_is_read() {
        let text = r#"[{"device":1,"address":4096,"total_size":96,"blocks":[
            {"size":64,"state":"active_allocated","history":[{"addr":4096,"frames":[{"filename":"old.py","line":3,"name":"f"}]}]},
            {"size":32,"state":"inactive"}]}]"#;
        let told = of(text, ENTRIES).unwrap();
        assert_eq!((told.figures.in_use_bytes, told.figures.largest_free_bytes), (Some(64), Some(32)));
        assert_eq!(told.request.device.as_deref(), Some("GPU 1"));
        assert!(told.because.iter().any(|reason| reason.contains("old.py:3 f")), "{told}");
    }

    #[test]
    fn lists_that_are_shared_beyond_measure_are_refused() {
        let block = "{\"size\":1,\"state\":\"inactive\"}";
        let segment = format!("{{\"device\":0,\"blocks\":[{block},{block},{block}]}}");
        let text = format!("[{}]", vec![segment; 100].join(","));
        assert!(of(&text, 1000).is_ok());
        assert!(of(&text, 300).unwrap_err().contains("more entries"));
    }

    #[test]
    fn values_of_other_kinds_are_refused_by_what_they_lack() {
        for (text, part) in [
            ("{}", "no `segments`"),
            ("{\"segments\": 3}", "no list"),
            ("[{}]", "no `blocks`"),
            ("3", "no `segments`"),
        ] {
            assert!(of(text, ENTRIES).unwrap_err().contains(part), "{text}");
        }
    }
}
