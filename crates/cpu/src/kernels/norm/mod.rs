//! Norms: [`rows`] where a statistic belongs to a row (layer, RMS), [`columns`] where it belongs to channels over
//! many rows (batch, group).

mod channels;
mod columns;
mod rows;
