//! Something to do while a device works.

/// What is to be done once, when the device has been given work and before it is waited for.
pub(crate) struct Meanwhile<'a>(pub(crate) Option<&'a mut dyn FnMut()>);

impl Meanwhile<'_> {
    pub(crate) fn nothing() -> Meanwhile<'static> {
        Meanwhile(None)
    }

    /// Does it, the first time.
    pub(crate) fn now(&mut self) {
        if let Some(body) = self.0.take() {
            body();
        }
    }
}
