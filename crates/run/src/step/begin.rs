//! Turns a step of which only other bodies were wanted into one that is run itself.

use plimsoll_graph::{Site, Type};

use super::{Body, Held, Pass, Step, StepOptions, StepResult, own};
use crate::error::Result;

impl Step {
    /// Gives a step that was made by [`Step::idle`] a body of its own, over what it has of state and more behind it, and
    /// compiles it for inputs of these types. What it had keeps its values, and its other bodies stay.
    ///
    /// `more` is made once the memory that the other bodies ran in is given back.
    ///
    /// # Errors
    /// As for [`Step::compile_with`]; the step is then as it was.
    #[track_caller]
    pub fn begin(
        &mut self,
        options: StepOptions,
        more: impl FnOnce() -> Result<Vec<Held>>,
        inputs: &[Type],
        body: impl Fn(&Pass<'_>) -> Result<StepResult> + Send + 'static,
    ) -> Result<()> {
        let site = Site::here();
        let n = self.state.len();
        // Forms that there are were compiled for the state as it was.
        self.variants.clear();
        self.drop_workspace(site)?;
        let old_options = std::mem::replace(&mut self.options, options);
        let mut other: Body = Box::new(body);
        std::mem::swap(&mut self.bodies[0], &mut other);
        self.runs = 0;
        let begun = self.add_state(more, site).and_then(|()| self.prepare(0, inputs, false, site));
        if begun.is_err() {
            self.variants.clear();
            self.state.truncate(n);
            self.names.truncate(n);
            self.options = old_options;
            std::mem::swap(&mut self.bodies[0], &mut other);
            // Why it could not begin is what is told.
            self.fit_workspace(site).ok();
        }
        begun
    }

    fn add_state(&mut self, more: impl FnOnce() -> Result<Vec<Held>>, site: Site) -> Result<()> {
        for Held { name, kind, tensor } in more()? {
            self.state.push(own(tensor, site)?);
            self.names.push((name, kind));
        }
        Ok(())
    }
}
