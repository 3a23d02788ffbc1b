//! Where a node comes from: the line of the user's source and the module in which it was called.

use std::sync::{LazyLock, Mutex, PoisonError};

use plimsoll_graph::Site;
use rustc_hash::FxHashSet;

use crate::schema::Metadata;

/// The innermost line of the user's own code: of the frames, the last one that is no part of an installed package.
pub fn line(metadata: &Metadata) -> Option<Site> {
    let frames = || metadata.stack_trace.split("File \"").skip(1).filter_map(frame);
    let is_own = |file: &str| !file.contains("site-packages") && !file.contains("dist-packages");
    let (file, line) = frames().filter(|(file, _)| is_own(file)).last().or_else(|| frames().last())?;
    Some(Site::new(kept(file), line))
}

fn frame(text: &str) -> Option<(&str, u32)> {
    let (file, rest) = text.split_once("\", line ")?;
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((file, digits.parse().ok()?))
}

/// The path of the module: `layer1.0.conv`.
pub fn module(metadata: &Metadata) -> &str {
    let last = metadata.nn_module_stack.rsplit(';').next().unwrap_or_default();
    last.split(',').nth(1).unwrap_or_default()
}

/// Files' names live as long as the process: a source line is a small thing that plans and ledgers copy freely. There are as many as
/// a program has source files.
fn kept(file: &str) -> &'static str {
    static FILES: LazyLock<Mutex<FxHashSet<&'static str>>> = LazyLock::new(Mutex::default);
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = files.get(file) {
        return known;
    }
    // A damaged file may name as many as it likes.
    if files.len() >= 4096 {
        return "another file";
    }
    let own: &'static str = Box::leak(file.to_string().into_boxed_str());
    files.insert(own);
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_the_users_own_and_not_that_of_a_package() {
        let trace = "File \"/home/me/model.py\", line 9, in forward\n    x\n  File \"/v/site-packages/torch/nn/modules/conv.py\", line 565, in forward\n";
        let metadata = Metadata {
            stack_trace: trace.into(),
            nn_module_stack: "L__self__,,__main__.M;L__self__c,c.0,torch.nn.modules.conv.Conv2d".into(),
            ..Metadata::default()
        };
        assert_eq!(line(&metadata), Some(Site::new("/home/me/model.py", 9)));
        assert_eq!(module(&metadata), "c.0");
        assert_eq!(line(&Metadata::default()), None);
    }
}
