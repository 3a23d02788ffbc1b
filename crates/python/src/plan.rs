//! Turns a plan into what the package shows of it: text, JSON and the document of a page.

use plimsoll::plan::StepPlan;
use plimsoll::prelude::Bytes;
use plimsoll_cli::shared::{PlanPage, plan_page};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::call;
use crate::errors::{Failure, plain};

/// A plan as Python has it.
pub struct Shown {
    page: PlanPage,
    held: Bytes,
}

impl Shown {
    /// Shows a plan of a model at a batch size, on data by name.
    pub fn new(model: &str, data: &str, batch: usize, plan: &StepPlan) -> Result<Shown, Failure> {
        Ok(Shown { page: plan_page(model, data, batch, plan).map_err(plain)?, held: call::held() })
    }

    /// The dictionary from which the package makes its `Plan`.
    pub fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("text", &self.page.text)?;
        dict.set_item("json", &self.page.json)?;
        dict.set_item("document", &self.page.document)?;
        dict.set_item("python_bytes", self.held.get())?;
        Ok(dict)
    }
}

/// The page of a plan's document, as HTML.
#[pyfunction]
pub fn page(py: Python<'_>, document: &str) -> PyResult<String> {
    call::caught(py, || {
        let record = plimsoll_report::parse_plan(document).map_err(plain)?;
        plimsoll_report::page(&record).map_err(plain)
    })
}
