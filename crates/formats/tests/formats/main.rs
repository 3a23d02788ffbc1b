//! Files of other programs, read and written.

mod interop;
mod keras;
mod scaled_jpeg;
