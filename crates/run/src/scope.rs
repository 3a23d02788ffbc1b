//! The naming scopes and source lines that are open in this thread: what plans, errors and reports call a layer, and which line of
//! the model they name.

use std::cell::{Cell, RefCell};
use std::thread::LocalKey;

use plimsoll_graph::Site;

thread_local! {
    static PATH: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static SITE: Cell<Option<Site>> = const { Cell::new(None) };
}

/// Runs `body` inside a naming scope: values traced in it carry the name in their path, and so do plans and refusals.
///
/// ```
/// use plimsoll_run::{Tensor, TensorOps, function, named};
/// let f = function(|x| named("layer1", || Ok(vec![x[0].exp()?])));
/// assert_eq!(f.call(&[&Tensor::from_slice(&[0.0f32], [1])?])?[0].to_vec::<f32>()?, [1.0]);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
pub fn named<T>(name: &str, body: impl FnOnce() -> T) -> T {
    within(&PATH, name.into(), body)
}

/// Runs `body` with a value on top of a thread's own ones, which is gone after it, also where it panics.
pub(crate) fn within<V: 'static, T>(
    all: &'static LocalKey<RefCell<Vec<V>>>,
    innermost: V,
    body: impl FnOnce() -> T,
) -> T {
    struct Leave<V: 'static>(&'static LocalKey<RefCell<Vec<V>>>);
    impl<V> Drop for Leave<V> {
        fn drop(&mut self) {
            drop(self.0.with_borrow_mut(Vec::pop));
        }
    }
    all.with_borrow_mut(|all| all.push(innermost));
    let _leave = Leave(all);
    body()
}

/// Runs `body` with a device asked for its ops: `cpu` for the host, or the name of the device that the step is on. What is traced in it
/// carries the wish in its path (`layer/@cpu`), and so do its gradients; the innermost wish counts. An op on the host of a card's step
/// copies what it reads there and what it makes back. Ops that run at once are placed the same way.
///
/// A device that the step has not is an error, unless [`Device::soft_placement`](crate::Device::soft_placement) is on.
///
/// ```
/// use plimsoll_run::{Tensor, TensorOps, function, on_device};
/// let f = function(|x| on_device("cpu", || Ok(vec![x[0].exp()?])));
/// assert_eq!(f.call(&[&Tensor::from_slice(&[0.0f32], [1])?])?[0].to_vec::<f32>()?, [1.0]);
/// let elsewhere = function(|x| on_device("cuda:7", || Ok(vec![x[0].exp()?])));
/// let error = elsewhere.call(&[&Tensor::from_slice(&[0.0f32], [1])?]).unwrap_err();
/// assert!(error.to_string().contains("asks for cuda:7"), "{error}");
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
pub fn on_device<T>(device: &str, body: impl FnOnce() -> T) -> T {
    named(&format!("{ASKED}{device}"), body)
}

/// What a scope begins with that asks for a device.
const ASKED: char = '@';

/// The device that is asked for in a path of scopes.
pub(crate) fn asked_device(path: &str) -> Option<&str> {
    path.rsplit('/').find_map(|scope| scope.strip_prefix(ASKED))
}

/// Runs `body` as part of what another line asked for: values traced in it carry that line, and so do plans, refusals and
/// reports. A layer uses it so that the line of the model is named and not the layer's own.
pub fn asked_at<T>(site: Site, body: impl FnOnce() -> T) -> T {
    struct Leave(Option<Site>);
    impl Drop for Leave {
        fn drop(&mut self) {
            SITE.set(self.0);
        }
    }
    let _leave = Leave(SITE.replace(Some(site)));
    body()
}

/// The line that [`asked_at`] names, if the caller runs inside it.
pub fn asked_from() -> Option<Site> {
    SITE.get()
}

/// Looks at the naming scopes that are open: nothing is joined where there are none.
pub(crate) fn with_path<T>(look: impl FnOnce(&str) -> T) -> T {
    let is_any = PATH.with_borrow(|path| !path.is_empty());
    if is_any { look(&path()) } else { look("") }
}

/// The naming scopes that are open, outermost first.
pub(crate) fn path() -> String {
    PATH.with_borrow(|path| path.join("/"))
}
