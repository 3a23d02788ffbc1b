//! Plans: right, within their limit, as good as they can be.

mod anew;
mod carried;
#[path = "../common/mod.rs"]
mod common;
mod copies;
mod first_answers;
mod floors;
mod golden;
mod instances;
mod monotone;
mod mutations;
mod optimum;
mod pack_random;
mod properties;
mod resnet;
#[path = "../shapes/mod.rs"]
mod shapes;
