//! What the Python package takes of the command: devices by name, and a plan as text, as JSON and as the document of a page, the plan of a traced step.

use plimsoll::internals::run::record::PlanFile;
use plimsoll::plan::StepPlan;
use plimsoll::prelude::*;

use crate::config::Config;
use crate::plan_text::About;
use crate::plan_trace::Asked;
use crate::{device_args, records};

/// The device of a name, as `--device` takes it: its kernels are timed once for this machine, and its plans kept.
///
/// # Errors
/// There is no such device, or it cannot be used; in words.
pub fn device(name: &str) -> Result<Device, String> {
    let config = Config { device: Some(name.into()), ..Config::default() };
    device_args::device(&config).map_err(|failure| failure.0)
}

/// A plan for people and programs.
pub struct PlanPage {
    /// A page of text.
    pub text: String,
    /// One JSON object, as `plimsoll plan --json` prints it.
    pub json: String,
    /// The plan with its step as one JSON document: what `plimsoll_report::parse_plan` reads.
    pub document: String,
}

/// Shows the plan of a model on data, both by name, at a batch size.
///
/// # Errors
/// The step cannot be recorded, or not be written as JSON; in words.
pub fn plan_page(model: &str, data: &str, batch: usize, plan: &StepPlan) -> Result<PlanPage, String> {
    let about = About { model, data, batch };
    let (info, limit) = (&plan.figures, plan.limit());
    let mut text = about.plan_text(info, None);
    plan.remarks().iter().for_each(|remark| text += &format!("note: {remark}\n"));
    let step = plan.timeline().map_err(|e| e.to_string())?;
    let figures = records::of_plan(model, batch, info, &step);
    let document = PlanFile { plan: &figures, step: &step, frontier: None, profile: None };
    let document = serde_json::to_string(&document).map_err(|e| e.to_string())?;
    Ok(PlanPage { text, json: about.plan_json(limit, info, None).to_string(), document })
}

/// Plans a step that was traced elsewhere, one JSON object a line, within a memory limit (`6GiB`): the answer of
/// `plimsoll plan --trace --json`, with the instructions where there is a plan.
///
/// # Errors
/// The text is no trace, or the limit no size; in words.
pub fn plan_traced(trace: &str, limit: Option<&str>) -> Result<String, String> {
    let limit = limit.map(str::parse::<Bytes>).transpose().map_err(|e| e.to_string())?;
    let answer = Asked { limit, ..Asked::default() }.of(trace)?;
    Ok(answer.document.unwrap_or(answer.line).to_string())
}
